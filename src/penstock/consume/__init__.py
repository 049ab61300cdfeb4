"""Reading: by range or by following, as messages in columns or as entries unopened; and cursors, which remember where.

reader.py     what a user reads with           feed.py      between the I/O thread and whoever reads
fetcher.py    a reader on the I/O thread       opening.py   what was fetched, judged and opened
cursor.py     positions that outlive readers   seeker.py    positions found out
"""

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.Checkpoint;
import org.apache.kafka.connect.mirror.DefaultReplicationPolicy;
import org.apache.kafka.connect.mirror.OffsetSync;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;
import org.apache.kafka.connect.mirror.ReplicationPolicy;

/**
 * MirrorMaker's own classes, asked line by line: a word, then its arguments, separated by tabs; one line answers.
 *
 * Bytes, and text that could be anything, are in hex.
 */
public final class Mirror {
    private static final HexFormat HEX = HexFormat.of();
    private static final ReplicationPolicy POLICY = new DefaultReplicationPolicy();
    private static final Duration LIMIT = Duration.ofSeconds(60);

    public static void main(String[] ignored) throws Exception {
        for (Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8); lines.hasNextLine(); ) {
            System.out.println(answer(lines.nextLine().split("\t", -1)));
        }
    }

    private static String answer(String[] words) throws Exception {
        return switch (words[0]) {
            case "read-sync" -> told(OffsetSync.deserializeRecord(record(words[1], words[2])));
            case "read-checkpoint" -> told(Checkpoint.deserializeRecord(record(words[1], words[2])));
            case "write-sync" -> stored(
                    new OffsetSync(partition(words[1], words[2]), Long.parseLong(words[3]), Long.parseLong(words[4])));
            case "write-checkpoint" -> stored(new Checkpoint(
                    text(words[1]),
                    partition(words[2], words[3]),
                    Long.parseLong(words[4]),
                    Long.parseLong(words[5]),
                    text(words[6])));
            case "topics" -> POLICY.offsetSyncsTopic(words[1]) + "\t" + POLICY.checkpointsTopic(words[1]);
            case "translate" -> translated(words[1], words[2], words[3]);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private static String told(OffsetSync sync) {
        return String.join(
                "\t", told(sync.topicPartition()), "" + sync.upstreamOffset(), "" + sync.downstreamOffset());
    }

    private static String told(Checkpoint checkpoint) {
        return String.join(
                "\t",
                hex(checkpoint.consumerGroupId()),
                told(checkpoint.topicPartition()),
                "" + checkpoint.upstreamOffset(),
                "" + checkpoint.downstreamOffset(),
                hex(checkpoint.metadata()));
    }

    private static String told(TopicPartition partition) {
        return hex(partition.topic()) + "\t" + partition.partition();
    }

    private static String stored(Object record) throws Exception {
        return bytes(record, "recordKey") + "\t" + bytes(record, "recordValue");
    }

    private static String bytes(Object record, String part) throws Exception {
        Method method = record.getClass().getDeclaredMethod(part);
        method.setAccessible(true);
        return HEX.formatHex((byte[]) method.invoke(record));
    }

    private static String translated(String bootstrap, String alias, String group) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        Map<String, String> found = new TreeMap<>();
        for (Map.Entry<TopicPartition, OffsetAndMetadata> one :
                RemoteClusterUtils.translateOffsets(settings, alias, group, LIMIT).entrySet()) {
            found.put(one.getKey().toString(), one.getValue().offset() + " " + one.getValue().metadata());
        }
        return found.entrySet().stream().map(one -> one.getKey() + " " + one.getValue()).collect(Collectors.joining("\t"));
    }

    private static ConsumerRecord<byte[], byte[]> record(String key, String value) {
        return new ConsumerRecord<>("topic", 0, 0, HEX.parseHex(key), HEX.parseHex(value));
    }

    private static TopicPartition partition(String topic, String number) {
        return new TopicPartition(text(topic), Integer.parseInt(number));
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String hex(String text) {
        return HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}

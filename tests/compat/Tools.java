import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after another in one Java, because starting it takes longer than most of them.
 *
 * Each line of standard input names a folder with the files `arguments` (the main class first, separated by zero bytes)
 * and `input`. The tool's `output` and `errors` are written there, then its exit status is printed. A tool that keeps
 * state in its classes is loaded anew each time: its name is preceded by `fresh:`.
 */
public final class Tools {
    /** What a tool's exit becomes. An error, so that a tool that catches exceptions lets it pass. */
    static final class Exited extends Error {
        Exited() {
            super("exit", null, false, false);
        }
    }

    private static Integer status;

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> {});
        answers.println("ready");
        for (Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8); lines.hasNextLine(); ) {
            answers.println(runIn(Path.of(lines.nextLine())));
            answers.flush();
        }
    }

    private static void exit(int code) {
        if (status == null) {
            status = code;
        }
        throw new Exited();
    }

    private static int runIn(Path folder) throws Exception {
        List<String> words = new ArrayList<>(List.of(Files.readString(folder.resolve("arguments")).split("\0", -1)));
        String tool = words.remove(0);
        InputStream oldIn = System.in;
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        ClassLoader oldLoader = Thread.currentThread().getContextClassLoader();
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        status = null;
        try {
            System.setIn(new ByteArrayInputStream(Files.readAllBytes(folder.resolve("input"))));
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            mainOf(tool).invoke(null, (Object) words.toArray(new String[0]));
        } catch (InvocationTargetException failure) {
            if (status == null) {
                failure.getCause().printStackTrace(System.err);
                status = 1;
            }
        } finally {
            System.setIn(oldIn);
            System.setOut(oldOut);
            System.setErr(oldErr);
            Thread.currentThread().setContextClassLoader(oldLoader);
        }
        Files.write(folder.resolve("output"), output.toByteArray());
        Files.write(folder.resolve("errors"), errors.toByteArray());
        return status == null ? 0 : status;
    }

    private static Method mainOf(String tool) throws Exception {
        if (!tool.startsWith("fresh:")) {
            return Class.forName(tool).getMethod("main", String[].class);
        }
        List<URL> jars = new ArrayList<>();
        for (String jar : System.getProperty("java.class.path").split(":")) {
            jars.add(Path.of(jar).toUri().toURL());
        }
        ClassLoader loader = new URLClassLoader(jars.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
        Thread.currentThread().setContextClassLoader(loader);
        Class<?> procedure = loader.loadClass(Exit.Procedure.class.getName());
        Object ours = Proxy.newProxyInstance(loader, new Class<?>[] {procedure}, (proxy, method, given) -> {
            exit((Integer) given[0]);
            return null;
        });
        loader.loadClass(Exit.class.getName()).getMethod("setExitProcedure", procedure).invoke(null, ours);
        return loader.loadClass(tool.substring("fresh:".length())).getMethod("main", String[].class);
    }
}

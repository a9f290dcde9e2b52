import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs the commands of pulsar-admin that come on standard input, one a line, their words between
 * tabs. Prints a line of "=== ok" or "=== failed" after what each command says.
 */
public class PulsarAdmin {
    static class Tool extends PulsarAdminTool {
        Tool(Properties properties) throws Exception {
            super(properties);
        }

        boolean execute(String line) {
            return run(line.split("\t"));
        }
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = System.out;
        // Set once: the tool keeps the stream that it finds, and some commands close it.
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream collecting =
                new PrintStream(said, true, StandardCharsets.UTF_8) {
                    @Override
                    public void close() {
                        flush();
                    }
                };
        System.setOut(collecting);
        System.setErr(collecting);
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", words[0]);
        Tool tool = new Tool(properties);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            said.reset();
            boolean succeeded = tool.execute(line);
            out.println(said.toString(StandardCharsets.UTF_8));
            out.println(succeeded ? "=== ok" : "=== failed");
        }
        System.exit(0);
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Publishing SERVICE_URL TOPIC [NAME] prints "ready", sends each line of its input without waiting,
 * one that begins with "later" for delivery in half a second, and prints "sent LINE ID" or "failed
 * LINE ERROR" for each. Ends after the input.
 */
public final class Publishing {
    public static void main(String[] words) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build()) {
            ProducerBuilder<byte[]> builder = client.newProducer().topic(words[1]).sendTimeout(0, TimeUnit.SECONDS);
            if (words.length > 2) {
                builder.producerName(words[2]);
            }
            Producer<byte[]> producer = builder.create();
            say("ready");
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String text = line;
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(text.getBytes());
                if (text.startsWith("later")) {
                    message.deliverAfter(500, TimeUnit.MILLISECONDS);
                }
                message.sendAsync().whenComplete((id, error) ->
                        say(error == null ? "sent " + text + " " + id : "failed " + text + " " + error));
            }
            producer.flush();
            producer.close();
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}

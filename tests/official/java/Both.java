import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Both SERVICE_URL TOPIC SUBSCRIPTION prints "ready" when it has subscribed, sends each line of its
 * input without waiting, its first word being the key, and prints "sent LINE ID" or "failed LINE
 * ERROR" for each, and "got LINE ID" for each message that it receives and acknowledges. Ends after
 * the input.
 */
public final class Both {
    public static void main(String[] words) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build()) {
            client.newConsumer().topic(words[1]).subscriptionName(words[2]).messageListener((consumer, message) -> {
                say("got " + new String(message.getData()) + " " + shown(message.getMessageId()));
                consumer.acknowledgeAsync(message);
            }).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(words[1]).create();
            say("ready");
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String text = line;
                producer.newMessage().key(text.split(" ")[0]).value(text.getBytes()).sendAsync()
                        .whenComplete((id, error) -> say(error == null ? "sent " + text + " " + shown(id) : "failed " + text + " " + error));
            }
            producer.close();
        }
    }

    private static String shown(MessageId id) {
        MessageIdAdv parts = (MessageIdAdv) id;
        return parts.getLedgerId() + ":" + parts.getEntryId() + ":" + parts.getPartitionIndex() + ":"
                + parts.getBatchIndex();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}

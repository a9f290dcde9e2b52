import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Encryption SERVICE_URL TOPIC ANSWERS PUBLIC_KEY PRIVATE_KEY COUNT reads COUNT encrypted messages of TOPIC, and publishes
 * each of them, encrypted, to ANSWERS in one compressed batch.
 */
public final class Encryption {
    public static void main(String[] words) throws Exception {
        CryptoKeyReader keys = new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return read(words[3]);
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return read(words[4]);
            }
        };
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build()) {
            Consumer<byte[]> consumer = client.newConsumer().topic(words[1]).subscriptionName("java")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).cryptoKeyReader(keys).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(words[2]).compressionType(CompressionType.LZ4)
                    .batchingMaxPublishDelay(10, TimeUnit.SECONDS)
                    .addEncryptionKey("app").cryptoKeyReader(keys).create();
            for (int number = 0; number < Integer.parseInt(words[5]); number++) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
                if (message == null || message.getEncryptionCtx().isEmpty()) {
                    throw new IllegalStateException("message " + number + " isn't encrypted: " + message);
                }
                producer.sendAsync(message.getData());
            }
            producer.flush();
        }
    }

    private static EncryptionKeyInfo read(String file) {
        try {
            return new EncryptionKeyInfo(Files.readAllBytes(Path.of(file)), null);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }
}

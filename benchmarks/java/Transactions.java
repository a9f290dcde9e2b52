import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Consume, copy, produce, with Pulsar's Java client: {@code Transactions URL}.
 *
 * <p>Commands come line by line: {@code open SOURCE TARGET WORKERS}, {@code run EACH AT_ONCE
 * SECONDS} and {@code close}. Each is answered with a line: {@code ok}, after {@code run} also when
 * each commit began and ended, in seconds since the command.
 */
public class Transactions {
    static final int CALL_WITHIN_S = 60;
    static final int NOTHING_LEFT_MS = 500;

    final PulsarClient client;
    final ExecutorService threads = Executors.newCachedThreadPool();
    final List<Producer<byte[]>> producers = new ArrayList<>();
    Consumer<byte[]> consumer;

    Transactions(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // for the log
        PulsarClient client =
                PulsarClient.builder().serviceUrl(words[0]).enableTransaction(true).build();
        Transactions all = new Transactions(client);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(all.answer(line.split(" ")));
            answers.flush();
        }
        System.exit(0);
    }

    String answer(String[] words) {
        try {
            switch (words[0]) {
                case "open":
                    open(words[1], words[2], Integer.parseInt(words[3]));
                    return "ok";
                case "run":
                    return "ok"
                            + run(
                                    Integer.parseInt(words[1]),
                                    Integer.parseInt(words[2]),
                                    Double.parseDouble(words[3]));
                default:
                    close();
                    return "ok";
            }
        } catch (Exception error) {
            error.printStackTrace();
            return "failed " + error.toString().replace('\n', ' ');
        }
    }

    void open(String source, String target, int workers) throws Exception {
        consumer =
                client.newConsumer()
                        .topic(source)
                        .subscriptionName("source")
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .receiverQueueSize(10_000)
                        .enableBatchIndexAcknowledgment(true)
                        .subscribe();
        for (int number = 0; number < workers; number++) {
            producers.add(client.newProducer().topic(target).create());
        }
    }

    void close() throws Exception {
        for (Producer<byte[]> producer : producers) {
            producer.close();
        }
        producers.clear();
        consumer.close();
    }

    String run(int each, int atOnce, double seconds) throws Exception {
        long began = System.nanoTime();
        long until = began + (long) (seconds * 1e9);
        List<Future<List<long[]>>> working = new ArrayList<>();
        for (Producer<byte[]> producer : producers.subList(0, atOnce)) {
            Callable<List<long[]>> work = () -> repeat(producer, each, until);
            working.add(threads.submit(work));
        }
        StringBuilder commits = new StringBuilder();
        for (Future<List<long[]>> done : working) {
            for (long[] commit : done.get()) {
                for (long time : commit) {
                    commits.append(' ').append((time - began) / 1e9);
                }
            }
        }
        return commits.toString();
    }

    List<long[]> repeat(Producer<byte[]> producer, int each, long until) throws Exception {
        List<long[]> commits = new ArrayList<>();
        while (System.nanoTime() < until) {
            Transaction txn =
                    client.newTransaction()
                            .withTransactionTimeout(1, TimeUnit.MINUTES)
                            .build()
                            .get(CALL_WITHIN_S, TimeUnit.SECONDS);
            if (!copy(producer, each, txn)) {
                txn.abort().get(CALL_WITHIN_S, TimeUnit.SECONDS);
                break;
            }
            long began = System.nanoTime();
            txn.commit().get(CALL_WITHIN_S, TimeUnit.SECONDS);
            commits.add(new long[] {began, System.nanoTime()});
        }
        return commits;
    }

    boolean copy(Producer<byte[]> producer, int each, Transaction txn) throws Exception {
        List<CompletableFuture<?>> done = new ArrayList<>();
        List<MessageId> received = new ArrayList<>();
        for (int number = 0; number < each; number++) {
            Message<byte[]> message = consumer.receive(NOTHING_LEFT_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                return false;
            }
            done.add(producer.newMessage(txn).value(message.getData()).sendAsync());
            received.add(message.getMessageId());
        }
        done.add(consumer.acknowledgeAsync(received, txn));
        for (CompletableFuture<?> one : done) {
            one.get(CALL_WITHIN_S, TimeUnit.SECONDS);
        }
        return true;
    }
}

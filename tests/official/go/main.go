// Scenarios with Pulsar's Go client, as it is: scenarios NAME SERVICE_URL WORDS...
//
// For TLS, SERVICE_URL is "URL;TRUSTED" or "URL;TRUSTED;CERTIFICATE;KEY", with the paths of files.
// Ends with 0 if what the scenario expects has happened. What a scenario reads from its input and
// prints, line by line, is said where it is defined.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

// patience is how long something that must happen may take: machines that run tests can be slow.
const patience = 30 * time.Second

var scenarios = map[string]func(client pulsar.Client, words []string) error{
	"publish":  publish,
	"consume":  consume,
	"both":     both,
	"crowd":    crowd,
	"failover": failover,
	"bytes":    bytesSchema,
	"pattern":  pattern,
	"encrypt":  encrypt,
	"decrypt":  decrypt,
}

func main() {
	scenario, found := scenarios[os.Args[1]]
	if !found {
		fmt.Fprintf(os.Stderr, "there is no scenario %q\n", os.Args[1])
		os.Exit(2)
	}
	where := strings.Split(os.Args[2], ";")
	options := pulsar.ClientOptions{
		URL:    where[0],
		Logger: log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	}
	if len(where) > 1 {
		options.TLSTrustCertsFilePath = where[1]
		options.TLSValidateHostname = true
	}
	if len(where) > 2 {
		options.Authentication = pulsar.NewAuthenticationTLS(where[2], where[3])
	}
	client, err := pulsar.NewClient(options)
	if err == nil {
		err = scenario(client, os.Args[3:])
		client.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// publish TOPIC [NAME] prints "ready", sends each line of the input without waiting, one that begins
// with "later" for delivery in half a second, and prints "sent LINE ID" or "failed LINE ERROR" for
// each. Ends after the input.
func publish(client pulsar.Client, words []string) error {
	options := pulsar.ProducerOptions{Topic: words[0], SendTimeout: -1}
	if len(words) > 1 {
		options.Name = words[1]
	}
	producer, err := client.CreateProducer(options)
	if err != nil {
		return err
	}
	defer producer.Close()
	fmt.Println("ready")
	var waiting sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line := lines.Text()
		waiting.Add(1)
		message := &pulsar.ProducerMessage{Payload: []byte(line)}
		if strings.HasPrefix(line, "later") {
			message.DeliverAfter = 500 * time.Millisecond
		}
		producer.SendAsync(context.Background(), message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				defer waiting.Done()
				if err != nil {
					fmt.Printf("failed %s %v\n", line, err)
				} else {
					fmt.Printf("sent %s %v\n", line, id)
				}
			})
	}
	waiting.Wait()
	return lines.Err()
}

// crowd TOPIC prints "ready"; then, 50 goroutines send 40 messages each, without batches and one at a
// time, every fifth one for delivery in half a second. It prints "sent LINE" for each, or fails.
func crowd(client pulsar.Client, words []string) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:           words[0],
		SendTimeout:     -1,
		DisableBatching: true,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	fmt.Println("ready")
	errors := make(chan error)
	for each := 0; each < 50; each++ {
		go func() {
			for number := 0; number < 40; number++ {
				line := fmt.Sprintf("%d-%d", each, number)
				message := &pulsar.ProducerMessage{Payload: []byte(line)}
				if number%5 == 0 {
					message.DeliverAfter = 500 * time.Millisecond
				}
				if _, err := producer.Send(context.Background(), message); err != nil {
					errors <- err
					return
				}
				fmt.Println("sent", line)
			}
			errors <- nil
		}()
	}
	for each := 0; each < 50; each++ {
		if err := <-errors; err != nil {
			return err
		}
	}
	return nil
}

// consume TOPIC SUBSCRIPTION prints "ready", then each message's payload, and acknowledges it.
// Ends when the input is closed.
func consume(client pulsar.Client, words []string) error {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       words[0],
		SubscriptionName:            words[1],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	fmt.Println("ready")
	over, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	for {
		message, err := consumer.Receive(over)
		if over.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(string(message.Payload()))
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
}

// both TOPIC SUBSCRIPTION prints "ready" when it has subscribed, sends each line of the input without
// waiting, its first word being the key, and prints "sent LINE ID" or "failed LINE ERROR" for each,
// and "got LINE ID" for each message that it receives and acknowledges. Ends after the input.
func both(client pulsar.Client, words []string) error {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{Topic: words[0], SubscriptionName: words[1]})
	if err != nil {
		return err
	}
	defer consumer.Close()
	go func() {
		for each := range consumer.Chan() {
			fmt.Printf("got %s %s\n", each.Payload(), shown(each.ID()))
			if err := consumer.Ack(each); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: words[0]})
	if err != nil {
		return err
	}
	defer producer.Close()
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line := lines.Text()
		key, _, _ := strings.Cut(line, " ")
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(line)}
		producer.SendAsync(context.Background(), message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					fmt.Printf("failed %s %v\n", line, err)
				} else {
					fmt.Printf("sent %s %s\n", line, shown(id))
				}
			})
	}
	return lines.Err()
}

func shown(id pulsar.MessageID) string {
	return fmt.Sprintf("%d:%d:%d:%d", id.LedgerID(), id.EntryID(), id.PartitionIdx(), id.BatchIdx())
}

type activity struct{}

func (activity) BecameActive(consumer pulsar.Consumer, topic string, partition int32) {
	fmt.Println("active", partition)
}

func (activity) BecameInactive(consumer pulsar.Consumer, topic string, partition int32) {
	fmt.Println("inactive", partition)
}

// failover TOPIC SUBSCRIPTION prints "active N" or "inactive N" whenever it is told so of
// partition N. Ends when the input is closed.
func failover(client pulsar.Client, words []string) error {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:            words[0],
		SubscriptionName: words[1],
		Type:             pulsar.Failover,
		EventListener:    activity{},
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// bytesSchema TOPIC sends and receives a value of the BYTES schema, and decodes it.
func bytesSchema(client pulsar.Client, words []string) error {
	over, end := context.WithTimeout(context.Background(), patience)
	defer end()
	schema := pulsar.NewBytesSchema(nil)
	reader, err := client.CreateReader(pulsar.ReaderOptions{
		Topic:          words[0],
		StartMessageID: pulsar.EarliestMessageID(),
		Schema:         schema,
	})
	if err != nil {
		return err
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: words[0], Schema: schema})
	if err != nil {
		return err
	}
	if _, err = producer.Send(over, &pulsar.ProducerMessage{Value: []byte("value")}); err != nil {
		return err
	}
	message, err := reader.Next(over)
	if err != nil {
		return err
	}
	var value []byte
	if err = message.GetSchemaValue(&value); err == nil && string(value) != "value" {
		err = fmt.Errorf("%q came", value)
	}
	return err
}

// pattern TOPICS SUBSCRIPTION prints "ready" when it has subscribed to a pattern. Ends when the
// input is closed.
func pattern(client pulsar.Client, words []string) error {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		TopicsPattern:    words[0],
		SubscriptionName: words[1],
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// encrypt TOPIC PUBLIC PRIVATE COUNT publishes 0 to COUNT-1, encrypted with the key "app" in the files:
// the first half in compressed batches, the others one by one.
func encrypt(client pulsar.Client, words []string) error {
	count, err := strconv.Atoi(words[3])
	if err != nil {
		return err
	}
	for _, single := range []bool{false, true} {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic:           words[0],
			DisableBatching: single,
			CompressionType: pulsar.LZ4,
			Encryption: &pulsar.ProducerEncryptionInfo{
				KeyReader: crypto.NewFileKeyReader(words[1], words[2]),
				Keys:      []string{"app"},
			},
		})
		if err != nil {
			return err
		}
		first, last := 0, count/2
		if single {
			first, last = last, count
		}
		failed := make(chan error, count)
		for number := first; number < last; number++ {
			message := &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(number))}
			producer.SendAsync(context.Background(), message,
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err })
		}
		if err := producer.Flush(); err != nil {
			return err
		}
		for number := first; number < last; number++ {
			if err := <-failed; err != nil {
				return err
			}
		}
		producer.Close()
	}
	return nil
}

// decrypt TOPIC PUBLIC PRIVATE COUNT prints the payloads of COUNT messages, decrypted with the key in
// the files. With an empty PRIVATE it delivers what it can't decrypt, and prints "encrypted" for it.
func decrypt(client pulsar.Client, words []string) error {
	count, err := strconv.Atoi(words[3])
	if err != nil {
		return err
	}
	decryption := &pulsar.MessageDecryptionInfo{
		KeyReader:                   crypto.NewFileKeyReader(words[1], words[2]),
		ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionFail,
	}
	if words[2] == "" {
		decryption = &pulsar.MessageDecryptionInfo{
			ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
		}
	}
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       words[0],
		SubscriptionName:            "go",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Decryption:                  decryption,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	over, end := context.WithTimeout(context.Background(), patience)
	defer end()
	for number := 0; number < count; number++ {
		message, err := consumer.Receive(over)
		if err != nil {
			return err
		}
		if message.GetEncryptionContext() != nil {
			fmt.Println("encrypted")
		} else {
			fmt.Println(string(message.Payload()))
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var ready = regexp.MustCompile(`^ready: .* at (\S+)`)

// startBroker starts a real broker on free ports, with data that goes when it does, and returns its
// endpoint when it is ready. It stops when the test is over.
func startBroker(t *testing.T) string {
	t.Helper()
	program := os.Getenv("COSMODROME")
	if program == "" {
		program = "cosmodrome"
	}
	broker := exec.Command(program, "serve", "--dev", "--temporary", "--port", "0", "--metrics-port", "0")
	broker.Stderr = os.Stderr
	output, err := broker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = broker.Process.Signal(syscall.SIGTERM)
		_ = broker.Wait()
	})
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if found := ready.FindStringSubmatch(lines.Text()); found != nil {
			return found[1]
		}
	}
	t.Fatal("the broker ended before it was ready")
	return ""
}

func TestWhatIsSentIsReceived(t *testing.T) {
	config := &rmq.Config{
		Endpoint:      startBroker(t),
		ConsumerGroup: "billing",
		Credentials:   &credentials.SessionCredentials{},
	}
	ctx := context.Background()

	producer, err := rmq.NewProducer(config, rmq.WithTopics("orders"))
	check(err)
	check(producer.Start())
	defer producer.GracefulStop()
	_, err = producer.Send(ctx, &rmq.Message{Topic: "orders", Body: []byte("hello")})
	check(err)

	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"orders": rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	defer consumer.GracefulStop()
	messages, err := consumer.Receive(ctx, 1, 30*time.Second)
	check(err)
	if body := string(messages[0].GetBody()); body != "hello" {
		t.Fatalf("received %q", body)
	}
	check(consumer.Ack(ctx, messages[0]))
}

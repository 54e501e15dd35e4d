// The official Go client: send a message, receive it, acknowledge it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	config := &rmq.Config{
		Endpoint:      "127.0.0.1:8081",
		ConsumerGroup: "quick-start-go",
		Credentials:   &credentials.SessionCredentials{},
	}
	if len(os.Args) > 1 {
		config.Endpoint = os.Args[1]
	}
	ctx := context.Background()

	producer, err := rmq.NewProducer(config, rmq.WithTopics("quick-start"))
	check(err)
	check(producer.Start())
	receipts, err := producer.Send(ctx, &rmq.Message{Topic: "quick-start", Body: []byte("hello from Go")})
	check(err)
	fmt.Println("sent", receipts[0].MessageID)
	check(producer.GracefulStop())

	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"quick-start": rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	messages, err := consumer.Receive(ctx, 16, 30*time.Second)
	check(err)
	for _, message := range messages {
		check(consumer.Ack(ctx, message))
		fmt.Println("received", string(message.GetBody()))
	}
	check(consumer.GracefulStop())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

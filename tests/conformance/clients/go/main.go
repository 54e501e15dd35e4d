// The official Go client behind the line protocol of tests/conformance/driver.py: one JSON
// object a line in, one out, every command in a goroutine of its own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type Filter struct{ Expression, Type string }

// Message is a message on its way out or in; absent fields are left out of the line.
type Message struct {
	Handle       string            `json:"handle,omitempty"`
	MessageID    string            `json:"message_id,omitempty"`
	Topic        string            `json:"topic"`
	Body         []byte            `json:"body"`
	Tag          *string           `json:"tag"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	MessageGroup *string           `json:"message_group"`
	Attempt      int32             `json:"attempt"`
	DeliveryAtMs *int64            `json:"delivery_at_ms"`
	BornAtMs     *int64            `json:"born_at_ms"`
	BornHost     *string           `json:"born_host"`
	Priority     *int32            `json:"priority"`
	LiteTopic    *string           `json:"lite_topic"`
}

type Command struct {
	ID            int               `json:"id"`
	Op            string            `json:"op"`
	Client        string            `json:"client"`
	Endpoint      string            `json:"endpoint"`
	Namespace     string            `json:"namespace"`
	TLS           *bool             `json:"tls"`
	AccessKey     string            `json:"access_key"`
	SecretKey     string            `json:"secret_key"`
	Topics        []string          `json:"topics"`
	MaxAttempts   *int32            `json:"max_attempts"`
	Checker       string            `json:"checker"`
	Group         string            `json:"group"`
	Subscriptions map[string]Filter `json:"subscriptions"`
	AwaitMs       int64             `json:"await_ms"`
	FailTimes     int               `json:"fail_times"`
	SlowMs        int64             `json:"slow_ms"`
	Message       *Message          `json:"message"`
	Transaction   string            `json:"transaction"`
	Asynchronous  bool              `json:"asynchronous"`
	Topic         string            `json:"topic"`
	RecallHandle  string            `json:"recall_handle"`
	MaxMessages   int32             `json:"max_messages"`
	InvisibleMs   int64             `json:"invisible_ms"`
	Handle        string            `json:"handle"`
	BindTopic     string            `json:"bind_topic"`
	LiteTopic     string            `json:"lite_topic"`
}

type Answer map[string]any

var (
	lock     sync.Mutex
	clients  = map[string]any{}
	received = map[string]*rmq.MessageView{}
	counter  int
)

func say(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	lock.Lock()
	defer lock.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func epochMs(at *time.Time) *int64 {
	if at == nil {
		return nil
	}
	ms := at.UnixMilli()
	return &ms
}

func shown(view *rmq.MessageView) Message {
	lock.Lock()
	counter++
	handle := strconv.Itoa(counter)
	received[handle] = view
	lock.Unlock()
	message := Message{
		Handle: handle, MessageID: view.GetMessageId(), Topic: view.GetTopic(), Body: view.GetBody(),
		Tag: view.GetTag(), Keys: view.GetKeys(), Properties: view.GetProperties(),
		MessageGroup: view.GetMessageGroup(), Attempt: view.GetDeliveryAttempt(),
		DeliveryAtMs: epochMs(view.GetDeliveryTimestamp()), BornAtMs: epochMs(view.GetBornTimestamp()),
		BornHost: view.GetBornHost(),
	}
	if lite := view.GetLiteTopic(); lite != "" {
		message.LiteTopic = &lite
	}
	return message
}

// listener fails each message FailTimes times, after SlowMs of work, and tells of each delivery.
func listener(c *Command) rmq.MessageListener {
	var seenLock sync.Mutex
	seen := map[string]int{}
	return &rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
		seenLock.Lock()
		seen[view.GetMessageId()]++
		succeeds := seen[view.GetMessageId()] > c.FailTimes
		seenLock.Unlock()
		result := "failure"
		if succeeds {
			result = "success"
		}
		say(Answer{"event": "delivery", "client": c.Client, "message": shown(view), "result": result})
		time.Sleep(milliseconds(c.SlowMs))
		if succeeds {
			return rmq.SUCCESS
		}
		return rmq.FAILURE
	}}
}

// checker answers with the message's own property `verdict`, else with the one it was made with.
func checker(c *Command) *rmq.TransactionChecker {
	return &rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
		verdict, ok := view.GetProperties()["verdict"]
		if !ok {
			verdict = c.Checker
		}
		say(Answer{"event": "check", "client": c.Client, "message": shown(view), "result": verdict})
		return map[string]rmq.TransactionResolution{
			"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
		}[verdict]
	}}
}

func config(c *Command) *rmq.Config {
	if c.TLS != nil {
		rmq.EnableSsl = *c.TLS // of the whole process: a test of the other mode has its own
	}
	return &rmq.Config{
		Endpoint: c.Endpoint, NameSpace: c.Namespace, ConsumerGroup: c.Group,
		Credentials: &credentials.SessionCredentials{AccessKey: c.AccessKey, AccessSecret: c.SecretKey},
	}
}

func filter(given Filter) *rmq.FilterExpression {
	if given.Type == "sql" {
		return rmq.NewFilterExpressionWithType(given.Expression, rmq.SQL92)
	}
	return rmq.NewFilterExpression(given.Expression)
}

func subscriptions(c *Command) map[string]*rmq.FilterExpression {
	expressions := map[string]*rmq.FilterExpression{}
	for topic, given := range c.Subscriptions {
		expressions[topic] = filter(given)
	}
	return expressions
}

func start(c *Command, client interface{ Start() error }, err error) (Answer, error) {
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return nil, err
	}
	lock.Lock()
	defer lock.Unlock()
	clients[c.Client] = client
	return Answer{}, nil
}

func client[T any](c *Command) T {
	lock.Lock()
	defer lock.Unlock()
	found, ok := clients[c.Client].(T)
	if !ok {
		panic(fmt.Sprintf("no client %q that can %s", c.Client, c.Op))
	}
	return found
}

func view(c *Command) *rmq.MessageView {
	lock.Lock()
	defer lock.Unlock()
	return received[c.Handle]
}

func built(given *Message) (*rmq.Message, error) {
	message := &rmq.Message{Topic: given.Topic, Body: given.Body}
	if given.Tag != nil {
		message.SetTag(*given.Tag)
	}
	if len(given.Keys) > 0 {
		message.SetKeys(given.Keys...)
	}
	for name, value := range given.Properties {
		message.AddProperty(name, value)
	}
	if given.MessageGroup != nil {
		message.SetMessageGroup(*given.MessageGroup)
	}
	if given.DeliveryAtMs != nil {
		message.SetDelayTimestamp(time.UnixMilli(*given.DeliveryAtMs))
	}
	if given.LiteTopic != nil {
		message.SetLiteTopic(*given.LiteTopic)
	}
	if given.Priority != nil {
		if err := message.SetPriority(*given.Priority); err != nil {
			return nil, err
		}
	}
	return message, nil
}

func send(c *Command) (Answer, error) {
	producer := client[rmq.Producer](c)
	message, err := built(c.Message)
	if err != nil {
		return nil, err
	}
	receipts, err := sent(c, producer, message)
	if err != nil {
		return nil, err
	}
	receipt := receipts[0]
	answer := Answer{"message_id": receipt.MessageID}
	if receipt.TransactionId != "" {
		answer["transaction_id"] = receipt.TransactionId
	}
	if receipt.RecallHandle != "" {
		answer["recall_handle"] = receipt.RecallHandle
	}
	return answer, nil
}

func sent(c *Command, producer rmq.Producer, message *rmq.Message) ([]*rmq.SendReceipt, error) {
	if c.Asynchronous {
		type outcome struct {
			receipts []*rmq.SendReceipt
			err      error
		}
		done := make(chan outcome, 1)
		producer.SendAsync(context.Background(), message, func(_ context.Context, r []*rmq.SendReceipt, e error) {
			done <- outcome{r, e}
		})
		result := <-done
		return result.receipts, result.err
	}
	if c.Transaction == "" {
		return producer.Send(context.Background(), message)
	}
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), message, transaction)
	if err == nil && c.Transaction == "commit" {
		err = transaction.Commit()
	}
	if err == nil && c.Transaction == "rollback" {
		err = transaction.RollBack()
	}
	return receipts, err
}

func receive(c *Command) (Answer, error) {
	views, err := client[rmq.SimpleConsumer](c).Receive(context.Background(), c.MaxMessages, milliseconds(c.InvisibleMs))
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == 40401 {
		err = nil // this client tells "no message" as an error
	}
	if err != nil {
		return nil, err
	}
	messages := []Message{}
	for _, view := range views {
		messages = append(messages, shown(view))
	}
	return Answer{"messages": messages}, nil
}

func subscribe(c *Command) (Answer, error) {
	consumer := client[interface {
		Subscribe(string, *rmq.FilterExpression) error
	}](c)
	for topic, given := range c.Subscriptions {
		if err := consumer.Subscribe(topic, filter(given)); err != nil {
			return nil, err
		}
	}
	return Answer{}, nil
}

func newProducer(c *Command) (Answer, error) {
	options := []rmq.ProducerOption{rmq.WithTopics(c.Topics...)}
	if c.Checker != "" {
		options = append(options, rmq.WithTransactionChecker(checker(c)))
	}
	if c.MaxAttempts != nil {
		options = append(options, rmq.WithMaxAttempts(*c.MaxAttempts))
	}
	producer, err := rmq.NewProducer(config(c), options...)
	return start(c, producer, err)
}

func newConsumer(c *Command) (Answer, error) {
	switch c.Op {
	case "simple":
		consumer, err := rmq.NewSimpleConsumer(config(c), rmq.WithSimpleAwaitDuration(milliseconds(c.AwaitMs)),
			rmq.WithSimpleSubscriptionExpressions(subscriptions(c)))
		return start(c, consumer, err)
	case "push":
		consumer, err := rmq.NewPushConsumer(config(c), rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(subscriptions(c)), rmq.WithPushMessageListener(listener(c)))
		return start(c, consumer, err)
	default:
		lite := rmq.NewLitePushConsumerConfig(c.BindTopic, 30*time.Second)
		consumer, err := rmq.NewLitePushConsumer(config(c), lite, rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushMessageListener(listener(c)))
		return start(c, consumer, err)
	}
}

func run(c *Command) (Answer, error) {
	switch c.Op {
	case "producer":
		return newProducer(c)
	case "simple", "push", "lite_push":
		return newConsumer(c)
	case "send":
		return send(c)
	case "recall":
		id, err := client[rmq.Producer](c).Recall(context.Background(), c.Topic, c.RecallHandle)
		return Answer{"message_id": id}, err
	case "receive":
		return receive(c)
	case "ack":
		return Answer{}, client[rmq.SimpleConsumer](c).Ack(context.Background(), view(c))
	case "change_invisible":
		return Answer{}, client[rmq.SimpleConsumer](c).ChangeInvisibleDuration(view(c), milliseconds(c.InvisibleMs))
	case "subscribe":
		return subscribe(c)
	case "unsubscribe":
		return Answer{}, client[interface{ Unsubscribe(string) error }](c).Unsubscribe(c.Topic)
	case "subscribe_lite":
		return Answer{}, client[rmq.LitePushConsumer](c).SubscribeLite(c.LiteTopic)
	case "unsubscribe_lite":
		return Answer{}, client[rmq.LitePushConsumer](c).UnSubscribeLite(c.LiteTopic)
	case "close":
		closing := client[interface{ GracefulStop() error }](c)
		lock.Lock()
		delete(clients, c.Client)
		lock.Unlock()
		return Answer{}, closing.GracefulStop()
	}
	return nil, fmt.Errorf("no %s in this client", c.Op)
}

func answer(c *Command) {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", problem, debug.Stack())
			say(Answer{"id": c.ID, "ok": false, "error": Answer{"type": "panic", "message": fmt.Sprint(problem)}})
		}
	}()
	result, err := run(c)
	if err == nil {
		result["id"], result["ok"] = c.ID, true
		say(result)
		return
	}
	problem := Answer{"type": fmt.Sprintf("%T", err), "message": err.Error()}
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		problem["code"] = status.GetCode()
	}
	say(Answer{"id": c.ID, "ok": false, "error": problem})
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == "github.com/apache/rocketmq-clients/golang/v5" {
				return dependency.Version
			}
		}
	}
	return "unknown"
}

func main() {
	say(Answer{"event": "ready", "client_version": version()})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		command := &Command{}
		if err := json.Unmarshal(line, command); err != nil {
			panic(err)
		}
		if command.Op == "exit" {
			return
		}
		go answer(command)
	}
}

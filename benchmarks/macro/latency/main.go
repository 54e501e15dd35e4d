// The official Go client at a fixed rate: `latency ENDPOINT TOPIC GROUP RATE SECONDS [ROUNDS]`.
//
// A producer sends messages of 1 KiB, each begun when it is due whether or not earlier ones were
// answered, and a push consumer takes them. Printed for each round, as the Java client's load
// prints it: how long from send to answer and from send to listener. The client is compiled
// beforehand and collects its garbage between rounds, so that p99 is neither that of a compiler
// nor of a collector at work: Go's takes every core for some 3 ms, at this rate three times a
// second, which is one message in a hundred whatever server answers.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	bodyBytes    = 1024
	settle       = 8 * time.Second // routes, settings, the first assignments
	lastMessages = 3 * time.Second
	threads      = 8
)

// Times are durations of one kind within a round.
type Times struct {
	lock sync.Mutex
	all  []time.Duration
}

func (t *Times) add(one time.Duration) {
	t.lock.Lock()
	t.all = append(t.all, one)
	t.lock.Unlock()
}

func (t *Times) clear() {
	t.lock.Lock()
	t.all = t.all[:0]
	t.lock.Unlock()
}

func (t *Times) say(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if len(t.all) == 0 {
		fmt.Printf("%s n=0\n", name)
		return
	}
	sort.Slice(t.all, func(i, j int) bool { return t.all[i] < t.all[j] })
	at := func(share float64) float64 {
		return float64(t.all[int(float64(len(t.all)-1)*share)].Microseconds()) / 1000
	}
	fmt.Printf("%s n=%d p50=%.2fms p99=%.2fms max=%.2fms\n", name, len(t.all), at(0.5), at(0.99), at(1))
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	if len(os.Args) < 6 {
		fmt.Fprintln(os.Stderr, "usage: latency ENDPOINT TOPIC GROUP RATE SECONDS [ROUNDS]")
		os.Exit(2)
	}
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	rate, seconds, rounds := must(strconv.Atoi(os.Args[4])), must(strconv.Atoi(os.Args[5])), 3
	if len(os.Args) > 6 {
		rounds = must(strconv.Atoi(os.Args[6]))
	}
	debug.SetGCPercent(-1)
	started := time.Now() // its monotonic clock is what bodies carry
	var sends, deliveries Times

	config := func(group string) *rmq.Config {
		return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
	}
	consumer := must(rmq.NewPushConsumer(config(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushConsumptionThreadCount(threads),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
			sent := time.Duration(binary.BigEndian.Uint64(view.GetBody()))
			deliveries.add(time.Since(started) - sent)
			return rmq.SUCCESS
		}})))
	must(0, consumer.Start())
	producer := must(rmq.NewProducer(config(""), rmq.WithTopics(topic)))
	must(0, producer.Start())
	time.Sleep(settle)

	for range rounds {
		runtime.GC()
		sends.clear()
		deliveries.clear()
		var answered sync.WaitGroup
		begun := time.Now()
		for i := range rate * seconds {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Second / time.Duration(rate))))
			body := make([]byte, bodyBytes)
			at := time.Since(started)
			binary.BigEndian.PutUint64(body, uint64(at))
			message := &rmq.Message{Topic: topic, Body: body}
			message.SetTag("a")
			answered.Add(1)
			producer.SendAsync(context.Background(), message, func(_ context.Context, _ []*rmq.SendReceipt, err error) {
				must(0, err)
				sends.add(time.Since(started) - at)
				answered.Done()
			})
		}
		answered.Wait()
		time.Sleep(lastMessages)
		sends.say("send")
		deliveries.say("e2e")
	}
	must(0, producer.GracefulStop())
	must(0, consumer.GracefulStop())
}

// The official Node.js client: send a message, receive it, acknowledge it.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

async function main(endpoints = '127.0.0.1:8081') {
  const producer = new Producer({ endpoints, namespace: '' });
  await producer.startup();
  const receipt = await producer.send({ topic: 'quick-start', body: Buffer.from('hello from Node.js') });
  console.log('sent', receipt.messageId);
  await producer.shutdown();

  const consumer = new SimpleConsumer({
    endpoints, namespace: '', consumerGroup: 'quick-start-node', subscriptions: new Map([[ 'quick-start', '*' ]]),
  });
  await consumer.startup();
  for (const message of await consumer.receive(16)) {
    await consumer.ack(message);
    console.log('received', message.body.toString());
  }
  await consumer.shutdown();
}

main(process.argv[2]).then(() => process.exit(0));

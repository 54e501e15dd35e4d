// A real broker for the tests of a Node.js program: node --test
const assert = require('node:assert');
const { spawn } = require('node:child_process');
const { createInterface } = require('node:readline');
const test = require('node:test');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

// Starts a broker on free ports, with data that goes when it does; resolves when it is ready.
function startBroker() {
  const flags = [ 'serve', '--dev', '--temporary', '--port', '0', '--metrics-port', '0' ];
  const broker = spawn(process.env.COSMODROME ?? 'cosmodrome', flags, { stdio: [ 'ignore', 'pipe', 'inherit' ] });
  return new Promise((resolve, reject) => {
    broker.once('error', reject);
    broker.once('exit', code => reject(new Error(`the broker ended with exit code ${code}`)));
    createInterface({ input: broker.stdout }).on('line', line => {
      const ready = line.match(/^ready: .* at (\S+)/);
      if (ready) resolve({ endpoint: ready[1], stop: () => broker.kill() });
    });
  });
}

test('what is sent is received', async () => {
  const broker = await startBroker();
  const where = { endpoints: broker.endpoint, namespace: '' };
  const producer = new Producer(where);
  const consumer = new SimpleConsumer({ ...where, consumerGroup: 'billing', subscriptions: new Map([[ 'orders', '*' ]]) });
  try {
    await producer.startup();
    await producer.send({ topic: 'orders', body: Buffer.from('hello') });
    await consumer.startup();
    const [ message ] = await consumer.receive(1);
    assert.equal(message.body.toString(), 'hello');
    await consumer.ack(message);
  } finally {
    await consumer.shutdown();
    await producer.shutdown();
    broker.stop();
  }
});

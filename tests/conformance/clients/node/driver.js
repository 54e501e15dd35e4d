'use strict';
// The official Node.js client behind the line protocol of tests/conformance/driver.py:
// one JSON object a line in, one out. This client's durations are milliseconds.

const fs = require('node:fs');
const readline = require('node:readline');
const {
  Producer, PushConsumer, SimpleConsumer, LitePushConsumerImpl, FilterExpression, ConsumeResult, OffsetOption,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

const clients = new Map();
const received = new Map();
let counter = 0;

// Written at once: process.stdout is asynchronous on pipes and would lose the tail at exit.
function say(line) {
  const bytes = Buffer.from(JSON.stringify(line) + '\n');
  let at = 0;
  while (at < bytes.length) {
    try {
      at += fs.writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function shown(view) {
  const handle = String(++counter);
  received.set(handle, view);
  return {
    handle,
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString('base64'),
    tag: view.tag ?? null,
    keys: [ ...view.keys ].sort(),
    properties: Object.fromEntries(view.properties),
    message_group: view.messageGroup ?? null,
    attempt: view.deliveryAttempt ?? null,
    delivery_at_ms: view.deliveryTimestamp?.getTime() ?? null,
    born_at_ms: view.bornTimestamp?.getTime() ?? null,
    born_host: view.bornHost,
    priority: view.priority ?? null,
    lite_topic: view.liteTopic ?? null,
    corrupted: view.corrupted,
  };
}

// Fails each message `fail_times` times, after `slow_ms` of work, and tells of each delivery.
function listener(command) {
  const seen = new Map();
  return {
    async consume(view) {
      const times = (seen.get(view.messageId) ?? 0) + 1;
      seen.set(view.messageId, times);
      const succeeds = times > (command.fail_times ?? 0);
      say({
        event: 'delivery', client: command.client, message: shown(view), result: succeeds ? 'success' : 'failure',
      });
      if (command.slow_ms) await new Promise(resolve => setTimeout(resolve, command.slow_ms));
      return succeeds ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    },
  };
}

// Answers with the message's own property `verdict`, else with the one it was made with.
function checker(command) {
  return {
    async check(view) {
      const verdict = view.properties.get('verdict') ?? command.checker;
      say({ event: 'check', client: command.client, message: shown(view), result: verdict });
      return RESOLUTIONS[verdict];
    },
  };
}

function options(command) {
  const given = { endpoints: command.endpoint, namespace: command.namespace ?? '', logger: quiet };
  if (command.tls !== undefined && command.tls !== null) given.sslEnabled = command.tls;
  if (command.access_key) {
    given.sessionCredentials = { accessKey: command.access_key, accessSecret: command.secret_key };
  }
  return given;
}

const log = name => (...parts) => process.stderr.write(`${name} ${parts.map(String).join(' ')}\n`);
const quiet = { info: () => {}, debug: () => {}, warn: log('WARN'), error: log('ERROR'), close: () => {} };

function subscriptions(command) {
  return new Map(Object.entries(command.subscriptions).map(([ topic, { expression, type } ]) =>
    [ topic, new FilterExpression(expression, type === 'sql' ? FilterType.SQL : FilterType.TAG) ]));
}

async function start(command, client) {
  await client.startup();
  clients.set(command.client, client);
  return {};
}

function built({ message }) {
  const given = { topic: message.topic, body: Buffer.from(message.body, 'base64') };
  if (message.tag != null) given.tag = message.tag;
  if (message.keys?.length) given.keys = message.keys;
  if (message.properties) given.properties = new Map(Object.entries(message.properties));
  if (message.message_group != null) given.messageGroup = message.message_group;
  if (message.delivery_at_ms != null) given.deliveryTimestamp = new Date(message.delivery_at_ms);
  if (message.priority != null) given.priority = message.priority;
  if (message.lite_topic != null) given.liteTopic = message.lite_topic;
  return given;
}

const COMMANDS = {
  producer(command) {
    const given = options(command);
    if (command.topics) given.topics = command.topics;
    if (command.max_attempts != null) given.maxAttempts = command.max_attempts;
    if (command.checker) given.checker = checker(command);
    return start(command, new Producer(given));
  },
  simple(command) {
    return start(command, new SimpleConsumer({
      ...options(command), consumerGroup: command.group, subscriptions: subscriptions(command), awaitDuration: command.await_ms,
    }));
  },
  push(command) {
    return start(command, new PushConsumer({
      ...options(command), consumerGroup: command.group, subscriptions: subscriptions(command), messageListener: listener(command),
    }));
  },
  lite_push(command) {
    return start(command, new LitePushConsumerImpl({
      ...options(command),
      consumerGroup: command.group,
      bindTopic: command.bind_topic,
      subscriptions: new Map([[ command.bind_topic, FilterExpression.SUB_ALL ]]),
      messageListener: listener(command),
    }));
  },
  async send(command) {
    const producer = clients.get(command.client);
    const message = built(command);
    let receipt;
    if (command.transaction) {
      const transaction = producer.beginTransaction();
      receipt = await producer.send(message, transaction);
      if (command.transaction === 'commit') await transaction.commit();
      if (command.transaction === 'rollback') await transaction.rollback();
    } else {
      receipt = await producer.send(message);
    }
    return {
      message_id: receipt.messageId,
      transaction_id: receipt.transactionId || null,
      recall_handle: receipt.recallHandle || null,
    };
  },
  async recall({ client, topic, recall_handle: handle }) {
    return { message_id: (await clients.get(client).recallMessage(topic, handle)).messageId };
  },
  async receive({ client, max_messages: most, invisible_ms: invisible }) {
    return { messages: (await clients.get(client).receive(most, invisible)).map(shown) };
  },
  async ack({ client, handle }) {
    await clients.get(client).ack(received.get(handle));
    return {};
  },
  async change_invisible({ client, handle, invisible_ms: invisible }) {
    await clients.get(client).changeInvisibleDuration(received.get(handle), invisible);
    return {};
  },
  async subscribe(command) {
    const [[ topic, expression ]] = subscriptions(command);
    await clients.get(command.client).subscribe(topic, expression);
    return {};
  },
  async unsubscribe({ client, topic }) {
    clients.get(client).unsubscribe(topic);
    return {};
  },
  async subscribe_lite({ client, lite_topic: topic, from_start: fromStart }) {
    if (fromStart) await clients.get(client).subscribeLite(topic, OffsetOption.MIN_OFFSET);
    else await clients.get(client).subscribeLite(topic);
    return {};
  },
  async unsubscribe_lite({ client, lite_topic: topic }) {
    await clients.get(client).unsubscribeLite(topic);
    return {};
  },
  async close({ client }) {
    const closing = clients.get(client);
    clients.delete(client);
    await closing.shutdown();
    return {};
  },
};

async function run(command) {
  try {
    if (!COMMANDS[command.op]) throw Object.assign(new Error(`no ${command.op} in this client`), { name: 'Unsupported' });
    say({ id: command.id, ok: true, ...await COMMANDS[command.op](command) });
  } catch (error) {
    const code = Number.isInteger(error.code) ? error.code : null;
    const problem = { type: error.name === 'Error' ? error.constructor.name : error.name, message: error.message, code };
    say({ id: command.id, ok: false, error: problem });
  }
}

// A telemetry stream of this client that breaks while it is renewed has no listener for its error,
// which would end the process: applications need the same line.
process.on('uncaughtException', error => process.stderr.write(`uncaught exception: ${error?.stack}\n`));
process.on('unhandledRejection', error => process.stderr.write(`unhandled rejection: ${error?.stack}\n`));
say({ event: 'ready', client_version: require('rocketmq-client-nodejs/package.json').version });
readline.createInterface({ input: process.stdin })
  .on('line', line => {
    const command = JSON.parse(line);
    if (command.op === 'exit') process.exit(0);
    run(command);
  })
  .on('close', () => process.exit(0));

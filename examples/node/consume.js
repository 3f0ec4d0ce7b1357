// node consume.js orders --from earliest --max 10
//
// Prints a line of JSON for each record, until there were --max or Ctrl-C is pressed.
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { QuireError } from './errors.js';
import { run } from './run.js';

const CREDIT_BYTES = 1024 * 1024;

await run(
  'node consume.js TOPIC [--from earliest|latest] [--max N]',
  { from: { type: 'string', default: 'latest' }, max: { type: 'string', default: 'Infinity' } },
  async (cluster, name, { from, max }) => {
    const enough = new AbortController();
    process.once('SIGINT', () => enough.abort());
    let left = Number(max);
    if (left > 0) await consume(cluster, name, from, enough.signal, async (partition, record) => {
      const line = JSON.stringify({ partition, ...shown(record) });
      if (!process.stdout.write(`${line}\n`)) await once(process.stdout, 'drain');
      left -= 1;
      if (left === 0) enough.abort();
    });
  },
);

function shown({ offset, timestampMs, key, value, headers }) {
  const text = (bytes) => bytes?.toString() ?? null; // absent is null
  return {
    offset,
    timestampMs,
    key: text(key),
    value: text(value),
    headers: headers.map((header) => [header.key, text(header.value)]),
  };
}

/** Hand all records of a topic to `handle(partition, record)`, one after the other within a partition. */
async function consume(cluster, name, from, stopped, handle) {
  const feeds = new Map(); // by partition: what was read is not read again when a stream breaks
  while (!stopped.aborted) {
    try {
      const topic = await cluster.topic(name);
      const byLeader = new Map();
      for (const [partition, { address, epoch }] of topic.leaders.entries()) {
        const feed = feeds.get(partition) ?? { partition, offset: await offsetOf(cluster, address, name, partition, from) };
        feed.epoch = epoch;
        feeds.set(partition, feed);
        byLeader.set(address, [...(byLeader.get(address) ?? []), feed]);
      }
      console.error(`reading ${name}: ${feeds.size} partition(s)`);
      await readAll(cluster, name, byLeader, stopped, handle);
    } catch (error) {
      // To read twice does no harm, so an unknown outcome is as good as a failure here.
      if (stopped.aborted) return;
      if (!error.canTryAgain && error.reason !== 'OUTCOME_UNKNOWN') throw error;
      await sleep(error.retryAfterMs); // then find the leaders anew
    }
  }
}

async function offsetOf(cluster, address, name, partition, from) {
  const place = from === 'earliest' ? 'OFFSET_PLACE_EARLIEST' : 'OFFSET_PLACE_LATEST';
  const queries = [{ topic: { name }, partition, place }];
  const [found] = (await cluster.call(cluster.at(address).broker, 'listOffsets', { queries })).offsets;
  if (found.refusal) throw QuireError.ofRefusal(found.refusal);
  return found.offset;
}

/** Read from all leaders, until one of the streams ends. */
async function readAll(cluster, name, byLeader, stopped, handle) {
  const over = new AbortController();
  const end = () => over.abort();
  stopped.addEventListener('abort', end);
  try {
    await Promise.all(
      [...byLeader].map(([address, feeds]) => read(cluster, cluster.at(address).broker, name, feeds, over.signal, handle)),
    );
  } finally {
    end();
    stopped.removeEventListener('abort', end);
  }
}

/** One subscription: its broker sends records as they come, and no more than there is credit for. */
async function read(cluster, client, name, feeds, over, handle) {
  const stream = client.subscribe(cluster.metadata);
  stream.on('error', () => {}); // also when the loop below has been left: it raises what matters
  const cancel = () => stream.cancel();
  over.addEventListener('abort', cancel);
  try {
    stream.write({ start: { form: 'RECORD_FORM_DECODED', creditBytes: CREDIT_BYTES } });
    stream.write({
      add: {
        partitions: feeds.map(({ partition, offset, epoch }, n) => ({
          correlationId: n, // everything that is read for this carries the number
          topic: { name },
          partition,
          leaderEpoch: epoch,
          offset,
        })),
      },
    });
    for await (const { partitions } of stream) { // none: the broker says that it lives
      for (const fetched of partitions) {
        if (fetched.refusal) throw QuireError.ofRefusal(fetched.refusal);
        const feed = feeds[fetched.correlationId];
        for (const record of fetched.records.decoded.records) {
          await handle(feed.partition, record);
          feed.offset = record.offset + 1;
          if (over.aborted) return;
        }
        feed.offset = fetched.nextOffset;
        stream.write({ creditBytes: fetched.creditBytes }); // these are dealt with: as much more may come
      }
    }
    throw new QuireError('UNAVAILABLE', 'the broker has ended the stream');
  } catch (error) {
    throw QuireError.ofCall(error);
  } finally {
    over.removeEventListener('abort', cancel);
    stream.cancel();
  }
}

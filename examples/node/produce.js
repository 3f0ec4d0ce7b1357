// node produce.js orders < lines
//
// One record a line; what stands before a tab is its key.
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { QuireError } from './errors.js';
import { partitionOf } from './partitioner.js';
import { run } from './run.js';

const RECORDS_AT_ONCE = 500;
const TRY_MS_MAX = 30_000;

await run('node produce.js TOPIC < LINES', {}, async (cluster, name) => {
  const topic = await cluster.topic(name);
  let records = [];
  for await (const line of createInterface({ input: process.stdin })) {
    records.push(recordOf(line));
    // A call costs much and a record little, so they travel together. The next line is read when these are stored.
    if (records.length === RECORDS_AT_ONCE) {
      await store(cluster, topic, records);
      records = [];
    }
  }
  if (records.length) await store(cluster, topic, records);
});

function recordOf(line) {
  const tab = line.indexOf('\t');
  return {
    // A key or value that is left out is null, which differs from empty.
    ...(tab >= 0 && { key: Buffer.from(line.slice(0, tab)) }),
    value: Buffer.from(line.slice(tab + 1)),
    headers: [{ key: 'source', value: Buffer.from('node') }],
  };
}

/** Store records, each in its partition, and print where they are. */
async function store(cluster, topic, records) {
  let waiting = byPartition(records, topic);
  const giveUpAt = Date.now() + TRY_MS_MAX;
  while (waiting.size) {
    const refused = new Map();
    let refusal;
    for (const [address, entries] of byLeader(waiting, topic)) {
      const answer = await cluster.call(cluster.at(address).broker, 'produce', {
        acks: 'ACKS_ALL',
        partitions: entries.map(([partition, own]) => ({
          topic: { name: topic.name },
          partition,
          leaderEpoch: topic.leaders[partition].epoch,
          records: { decoded: { records: own } },
        })),
      });
      // Each partition succeeds or fails on its own.
      answer.partitions.forEach((stored, n) => {
        const [partition, own] = entries[n];
        if (stored.refusal) {
          refusal = QuireError.ofRefusal(stored.refusal);
          // Only what is known not to be stored is sent again: these records have no sequence numbers by which the
          // broker could tell that it has them.
          if (!refusal.canTryAgain || Date.now() >= giveUpAt) throw refusal;
          refused.set(partition, own);
        } else {
          const { baseOffset, endOffset, durability } = stored;
          console.log(JSON.stringify({ partition, baseOffset, endOffset, ...durability }));
        }
      });
    }
    waiting = refused;
    if (refused.size) {
      await sleep(refusal.retryAfterMs);
      Object.assign(topic, await cluster.topic(topic.name)); // the leaders may be others by now
    }
  }
}

function byPartition(records, topic) {
  const count = topic.leaders.length;
  const keyless = Math.floor(Math.random() * count); // all of these together, so that a batch is worth it
  return groupBy(records, ({ key }) => (key ? partitionOf(key, count, topic.partitioner) : keyless));
}

/** [address, [[partition, records], …]] for each broker that leads some of them. */
function byLeader(waiting, topic) {
  return groupBy([...waiting], ([partition]) => topic.leaders[partition].address);
}

function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

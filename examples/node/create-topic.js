// node create-topic.js orders --partitions 3
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { run } from './run.js';

const TRIES = 5;

await run(
  'node create-topic.js TOPIC [--partitions N]',
  { partitions: { type: 'string', default: '1' } },
  async (cluster, name, { partitions }) => {
    const { version } = await createTopic(cluster, {
      name,
      partitionCount: Number(partitions),
      // What is left out has its default. Records count once they are on the disk, unless a topic says otherwise:
      // config: { flush: { mode: 'FLUSH_MODE_OS' }, retentionMs: 3_600_000 },
    });
    const topic = await cluster.topic(name, version); // until each partition has a leader
    console.log(`created ${name} with ${topic.leaders.length} partition(s)`);
  },
);

async function createTopic(cluster, wanted) {
  // A change with an id is made once, however often it is asked for: so it may be sent again when no answer came.
  const changeId = { clientId: 'node-example', clientIncarnation: randomBytes(16), sequence: 1 };
  for (let tries = 1; ; tries += 1) {
    try {
      return await cluster.call(cluster.any().admin, 'createTopic', { ...wanted, changeId });
    } catch (error) {
      const mayAskAgain = error.canTryAgain || error.reason === 'OUTCOME_UNKNOWN';
      if (!mayAskAgain || tries === TRIES) throw error;
      cluster.turn();
      await sleep(error.retryAfterMs);
    }
  }
}

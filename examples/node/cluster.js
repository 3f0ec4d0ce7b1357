// The way into a cluster: a client for each broker, and who leads which partition.
import grpc from '@grpc/grpc-js';
import { setTimeout as sleep } from 'node:timers/promises';
import { BrokerService, ControllerAdminService } from './contract.js';
import { QuireError } from './errors.js';

const CALL_MS_MAX = 30_000;
const OPTIONS = {
  'grpc.max_receive_message_length': 64 * 1024 * 1024,
  // A broker that is gone without a word is noticed after 15 s.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
};

export class Cluster {
  #bootstrap;
  #brokers = new Map();

  /** `addresses` are some of the brokers: `localhost:7400,localhost:7420`. */
  constructor(addresses) {
    this.#bootstrap = addresses.split(',');
    this.metadata = new grpc.Metadata();
    this.metadata.set('quire-client-id', 'node-example'); // for the logs of brokers
  }

  /** The services of one broker: `broker` to store and read, `admin` to change the cluster. */
  at(address) {
    let services = this.#brokers.get(address);
    if (!services) {
      const plain = grpc.credentials.createInsecure();
      services = {
        broker: new BrokerService(address, plain, OPTIONS),
        admin: new ControllerAdminService(address, plain, OPTIONS),
      };
      this.#brokers.set(address, services);
    }
    return services;
  }

  /** Those of any broker: all of them answer for the cluster. */
  any() {
    const [address] = this.#bootstrap;
    return this.at(address);
  }

  /** Ask another broker the next time. */
  turn() {
    this.#bootstrap.push(this.#bootstrap.shift());
  }

  /** Call a method that is answered once: `call(services.broker, 'produce', request)`. */
  call(client, method, request) {
    return new Promise((resolve, reject) => {
      client[method](request, this.metadata, { deadline: Date.now() + CALL_MS_MAX }, (error, answer) =>
        error ? reject(QuireError.ofCall(error)) : resolve(answer),
      );
    });
  }

  /**
   * A topic as it is now, once each of its partitions has a leader: `{ name, partitioner, leaders }`, where `leaders[n]`
   * is the `{ address, epoch }` of partition n. Nothing older than `fromVersion` is believed.
   */
  async topic(name, fromVersion = 0) {
    const giveUpAt = Date.now() + CALL_MS_MAX;
    for (;;) {
      try {
        return await this.#topicFrom(this.any().broker, name, fromVersion, giveUpAt);
      } catch (error) {
        // To look twice does no harm, so an unknown outcome is as good as a failure here.
        const canTryAgain = error.canTryAgain || error.reason === 'OUTCOME_UNKNOWN';
        if (!canTryAgain || Date.now() >= giveUpAt) throw error;
        this.turn();
        await sleep(error.retryAfterMs);
      }
    }
  }

  async #topicFrom(client, name, fromVersion, deadline) {
    const stream = client.followTopics({ topics: [{ name }], fromVersion }, this.metadata, { deadline });
    stream.on('error', () => {}); // also when the loop below has been left: it raises what matters
    const brokers = new Map();
    const partitions = new Map();
    let topic;
    try {
      for await (const news of stream) {
        for (const { brokerId, host, port } of news.brokers) brokers.set(brokerId, `${host}:${port}`);
        for (const each of news.partitions) partitions.set(each.partition, each);
        for (const each of news.topics) topic = each;
        if (news.missing.length) throw new QuireError('UNKNOWN_TOPIC', `there is no topic '${name}'`);
        if (!topic || news.version === 0) continue; // more of the picture follows
        const found = [...Array(topic.partitionCount).keys()].map((n) => partitions.get(n));
        if (found.every((each) => brokers.has(each?.leader))) {
          const leaders = found.map(({ leader, leaderEpoch }) => ({ address: brokers.get(leader), epoch: leaderEpoch }));
          return { name, partitioner: topic.config.partitioner, leaders };
        }
      }
      throw new QuireError('UNAVAILABLE', 'the broker told no more');
    } catch (error) {
      throw QuireError.ofCall(error);
    } finally {
      stream.cancel();
    }
  }

  close() {
    for (const { broker, admin } of this.#brokers.values()) {
      broker.close();
      admin.close();
    }
  }
}

// What the three programs share: arguments, and what becomes of errors.
import { parseArgs } from 'node:util';
import { Cluster } from './cluster.js';
import { QuireError } from './errors.js';

/** Run a program: `main(cluster, topic, options)`. `options` are those of node:util's parseArgs. */
export async function run(usage, options, main) {
  let parsed;
  try {
    parsed = parseArgs({
      options: { broker: { type: 'string', default: 'localhost:7400' }, ...options },
      allowPositionals: true,
    });
  } catch (error) {
    console.error(error.message);
  }
  if (parsed?.positionals.length !== 1) {
    console.error(`usage: ${usage} [--broker HOST:PORT,…]`);
    process.exit(2);
  }
  // Whoever reads what is printed may stop doing so: `| head`.
  process.stdout.on('error', (error) => process.exit(error.code === 'EPIPE' ? 0 : 1));
  const cluster = new Cluster(parsed.values.broker);
  try {
    await main(cluster, parsed.positionals[0], parsed.values);
  } catch (error) {
    if (!(error instanceof QuireError)) throw error;
    console.error(`${error.reason}: ${error.message}`);
    process.exitCode = 1;
  } finally {
    cluster.close();
  }
}

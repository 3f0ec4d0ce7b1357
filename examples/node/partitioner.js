// Which partition a key goes to. The topic says how, so that clients in different languages never split a key.

/** The index of the partition; `partitioner` is that of the topic's settings. */
export function partitionOf(key, count, partitioner) {
  if (!['PARTITIONER_UNSPECIFIED', 'PARTITIONER_MURMUR3'].includes(partitioner)) {
    throw new Error(`the topic maps keys by ${partitioner}, which this example does not do`);
  }
  return murmur3(key) % count;
}

/** MurmurHash3, x86, 32 bits, seed 0. */
export function murmur3(bytes) {
  const rotate = (n, bits) => (n << bits) | (n >>> (32 - bits));
  const scramble = (n) => Math.imul(rotate(Math.imul(n, 0xcc9e2d51), 15), 0x1b873593);
  const whole = bytes.length - (bytes.length % 4);
  let hash = 0;
  for (let at = 0; at < whole; at += 4) {
    hash = rotate(hash ^ scramble(bytes.readInt32LE(at)), 13);
    hash = (Math.imul(hash, 5) + 0xe6546b64) | 0;
  }
  let rest = 0;
  for (let at = bytes.length - 1; at >= whole; at -= 1) rest = (rest << 8) | bytes[at];
  hash ^= scramble(rest) ^ bytes.length;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

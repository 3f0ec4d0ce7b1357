// Errors, as the contract has them: a reason to go by, a text for people. docs/PROTOCOL.md, "Errors", has the table.
//
// They come in two ways. A call that fails carries its reason in a trailer. A call that succeeds may still refuse some
// of its partitions: those have a `refusal` with the same content.
import grpc from '@grpc/grpc-js';
import { decode } from './contract.js';

/** With these reasons nothing was done, and the same call may succeed a little later, perhaps at another broker. */
const TRY_AGAIN = new Set([
  'NOT_LEADER', 'STALE_EPOCH', 'UNAVAILABLE', 'NOT_CONTROLLER', 'NOT_ENOUGH_REPLICAS', 'LOG_BUSY', 'DISK_FULL',
]);

export class QuireError extends Error {
  constructor(reason, message, { details = {}, retryAfterMs = 100 } = {}) {
    super(message);
    this.name = 'QuireError';
    this.reason = reason;
    this.details = details;
    this.retryAfterMs = retryAfterMs;
    this.canTryAgain = TRY_AGAIN.has(reason);
  }

  /** Of a part of an answer. */
  static ofRefusal(refusal) {
    const { reason, message, details, retryAfterMs } = refusal;
    return new QuireError(reason, message, { details, retryAfterMs: retryAfterMs ?? undefined });
  }

  /** Of a call that failed: what grpc-js raised. */
  static ofCall(error) {
    if (error instanceof QuireError || !(error.metadata instanceof grpc.Metadata)) return error;
    const [trailer] = error.metadata.get('grpc-status-details-bin');
    if (!trailer) {
      // Nobody who knows our errors has answered: a deadline that passed, a connection that broke, a port where nothing
      // listens. Whether the call was carried out cannot be told, so it is not called a failure.
      return new QuireError('OUTCOME_UNKNOWN', error.details || error.message, { details: { status: error.code } });
    }
    let reason = 'UNKNOWN';
    let details = {};
    let retryAfterMs;
    for (const { type_url: type, value } of decode('google.rpc.Status', trailer).details) {
      if (type.endsWith('/google.rpc.ErrorInfo')) {
        ({ reason, metadata: details } = decode('google.rpc.ErrorInfo', value));
      } else if (type.endsWith('/google.rpc.RetryInfo')) {
        const { seconds, nanos } = decode('google.rpc.RetryInfo', value).retryDelay;
        retryAfterMs = seconds * 1000 + nanos / 1e6;
      }
    }
    return new QuireError(reason, error.details, { details, retryAfterMs });
  }
}

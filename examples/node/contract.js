// The contract: what proto/ says, as clients and messages. Nothing is generated; the files are read when this starts.
import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const definition = loadSync(
  ['quire/v1/broker.proto', 'quire/v1/controller.proto', here('./error_details.proto')],
  {
    includeDirs: [here('../../proto')],
    defaults: true, // what was not sent has its default, and an absent message is null
    oneofs: true,
    enums: String,
    longs: Number, // offsets and milliseconds stay below 2^53
  },
);

const { BrokerService, ControllerAdminService } = grpc.loadPackageDefinition(definition).quire.v1;
export { BrokerService, ControllerAdminService };

/** Decode one of Google's error messages, such as `google.rpc.Status`. */
export const decode = (name, bytes) => definition[name].deserialize(bytes);

"""The contract, generated from proto/quire/v1 by scripts/gen_protos. Only this file is written by hand."""

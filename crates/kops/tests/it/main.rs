mod kept;
mod keypairs;
mod terraform;

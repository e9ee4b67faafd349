mod keypairs;
mod moto;
mod stored;
mod terraform;

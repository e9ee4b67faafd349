mod kept;
mod keypairs;
mod moto;
mod terraform;

mod create_cluster;
mod keypairs;
mod moto;
mod stored;
mod terraform;
mod toolbox;
mod upgrade;

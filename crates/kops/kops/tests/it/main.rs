mod access;
mod credentials;
mod edits;
mod keypairs;
mod moto;
mod shown;
mod stored;
mod terraform;

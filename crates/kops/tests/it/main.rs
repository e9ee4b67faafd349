mod kept;
mod keypairs;

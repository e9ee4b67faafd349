//! Encryption at rest: `EncryptionConfiguration`, its providers, and the store that applies them.
//!
//! Invariants:
//! - What is stored is upstream's, byte for byte but for what is random: `k8s:enc:<provider>:v1:<key>:` or
//!   `k8s:enc:kms:v2:<name>:` and the ciphertext, with the storage key as additional data where the cipher takes any. Our
//!   server and upstream's can take turns on one etcd.
//! - The first provider of a kind writes; all of them are tried on what is read. What another than the first has written,
//!   or the first with an older key, is stale: a write that changes nothing still stores it anew.
//! - A value that cannot be decrypted stays as it is. Readers get [`store::unreadable`] with the reason in its place.
//! - Without a configuration nothing is encrypted, and what is encrypted cannot be read.

mod cipher;
mod config;
mod error;
mod kms;
mod loaded;
mod provider;
mod store_layer;

pub use config::{EncryptionConfiguration, Key, Keys, Kms, Provider, ResourceConfiguration};
pub use error::{ConfigError, TransformError};
pub use loaded::{Encryption, POLL};
pub use store_layer::{Encrypted, Kinds};

/// The KMS v2 API.
mod v2 {
    // Generated code is not ours to lint, and its server half is for tests.
    #![allow(clippy::all, clippy::unwrap_used, unreachable_pub, dead_code)]
    include!(concat!(env!("OUT_DIR"), "/v2.rs"));
}

#[doc(hidden)]
pub mod testing {
    //! The plugin's side of the KMS v2 API, for tests.
    pub use crate::v2::{
        DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedObject,
        StatusRequest, StatusResponse,
        key_management_service_server::{KeyManagementService, KeyManagementServiceServer},
    };
}

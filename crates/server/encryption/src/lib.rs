//! Encryption at rest: `EncryptionConfiguration`, its providers, and the store layer that applies them. Read
//! [`Encrypted`] first. The caller maps storage keys to resources.
//!
//! Invariants:
//! - The stored form is upstream's, byte for byte except for random parts. It is `k8s:enc:<provider>:v1:<key>:` or
//!   `k8s:enc:kms:v2:<name>:` and the ciphertext, with the storage key as additional data if the cipher supports it.
//!   Our server and upstream's can alternate on one etcd.
//! - The first provider encrypts; all of them are tried for decryption. A value written by another provider, or with an
//!   older key, is stale: even a write that changes nothing stores it again.
//! - A value that cannot be decrypted is kept. Readers get [`store::unreadable`] with the reason instead.
//! - Without a configuration nothing is encrypted, and encrypted values cannot be read.

mod cipher;
mod config;
mod error;
mod kms;
mod provider;
mod reload;
mod store_layer;
mod v2;

pub use config::{
    EncryptionConfiguration, Key, Keys, Kms, Provider, ResourceConfiguration, parse_resource,
};
pub use error::{ConfigError, HealthError, KmsError, TransformError};
pub use reload::{Encryption, POLL, ReloadOutcomes};
pub use store_layer::{Encrypted, Kinds};

#[doc(hidden)]
pub mod testing {
    //! The plugin's side of the KMS v2 API, for tests.
    pub use crate::v2::{
        DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedObject,
        StatusRequest, StatusResponse,
        key_management_service_server::{KeyManagementService, KeyManagementServiceServer},
    };
}

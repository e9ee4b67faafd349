//! The volumes of Pods: one file for each type. Each implements `Plugin` and is listed in `PLUGINS`. This crate does
//! not decide when volumes are mounted; the Pod's worker in `kubelet` does. Read [`Volumes::mount`] first.
//!
//! Invariants:
//! - A Pod's worker sends the requests to the API server. Work on files, which may be on a server that does not answer,
//!   runs in [`Operations`].
//! - A mount is idempotent. It runs at every sync and updates the content.
//! - Directories are those of upstream's kubelet, so that each kubelet can take over the other's Pods.

mod atomic;
mod certificate;
mod certificates;
mod claim;
mod config_map;
mod csi;
mod disk;
mod downward_api;
mod drivers;
mod empty_dir;
mod error;
mod growth;
mod host_path;
mod image;
mod iscsi;
mod local;
mod mount;
mod nfs;
mod operations;
mod ownership;
mod plugin;
mod program;
mod projected;
mod provision;
mod secret;
mod space;
mod sub_path;
#[cfg(test)]
mod tests;
mod token;
mod trust_bundle;
mod volumes;

pub use crate::csi::{
    PublishedVolume, StatsResponse, VOLUMES_IN_POD, published_volumes, query_usage,
};
pub use certificates::Certificates;
pub use drivers::Drivers;
pub use error::{CertificateError, ClaimError, CsiError, Error, MountError};
pub use image::detach_block_volumes;
pub use mount::{MountedVolumes, may_change};
pub use nfs::NFS_IN_POD;
pub use operations::{EarlierResult, OperationError, Operations};
pub use plugin::VolumePath;
pub use program::{VolumeProgramError, VolumePrograms};
pub use provision::PROVISIONER;
pub use space::{SpaceError, VolumeSpace};
pub use sub_path::{SubPath, SubPathError};
pub use token::Tokens;
pub use volumes::{Volumes, local_directory};

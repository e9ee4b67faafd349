//! A config of spec 3.x, as the stages read it. What a later version added is absent in an older one, so one set
//! of types reads them all.

use serde::{Deserialize, Serialize};

macro_rules! spec {
    ($($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name { $($(#[$fmeta])* pub $field: $kind,)* }
        )*
    };
}

spec! {
    Config {
        ignition: Ignition,
        kernel_arguments: KernelArguments,
        passwd: Passwd,
        storage: Storage,
        systemd: Systemd,
    }
    Ignition {
        version: String,
        config: References,
        proxy: Proxy,
        security: Security,
        timeouts: Timeouts,
    }
    /// Other configs: those merged into this one, or the one that takes its place.
    References {
        merge: Vec<Resource>,
        replace: Resource,
    }
    /// What is fetched.
    Resource {
        source: Option<String>,
        compression: Option<String>,
        http_headers: Vec<Header>,
        verification: Verification,
    }
    Header {
        name: String,
        value: Option<String>,
    }
    Verification {
        hash: Option<String>,
    }
    Proxy {
        http_proxy: Option<String>,
        https_proxy: Option<String>,
        no_proxy: Vec<String>,
    }
    Security { tls: Tls, }
    Tls { certificate_authorities: Vec<Resource>, }
    /// In seconds; nought means none.
    Timeouts {
        http_response_headers: Option<u64>,
        http_total: Option<u64>,
    }
    KernelArguments {
        should_exist: Vec<String>,
        should_not_exist: Vec<String>,
    }
    Passwd {
        users: Vec<User>,
        groups: Vec<Group>,
    }
    User {
        name: String,
        password_hash: Option<String>,
        ssh_authorized_keys: Vec<String>,
        uid: Option<u32>,
        gecos: Option<String>,
        home_dir: Option<String>,
        no_create_home: Option<bool>,
        primary_group: Option<String>,
        groups: Vec<String>,
        no_user_group: Option<bool>,
        no_log_init: Option<bool>,
        shell: Option<String>,
        should_exist: Option<bool>,
        system: Option<bool>,
    }
    Group {
        name: String,
        gid: Option<u32>,
        password_hash: Option<String>,
        should_exist: Option<bool>,
        system: Option<bool>,
    }
    Storage {
        disks: Vec<Disk>,
        raid: Vec<Raid>,
        luks: Vec<Luks>,
        filesystems: Vec<Filesystem>,
        files: Vec<File>,
        directories: Vec<Directory>,
        links: Vec<Link>,
    }
    Disk {
        device: String,
        wipe_table: Option<bool>,
        partitions: Vec<Partition>,
    }
    Partition {
        number: u32,
        label: Option<String>,
        #[serde(rename = "startMiB")]
        start_mib: Option<u64>,
        #[serde(rename = "sizeMiB")]
        size_mib: Option<u64>,
        type_guid: Option<String>,
        guid: Option<String>,
        wipe_partition_entry: Option<bool>,
        should_exist: Option<bool>,
        resize: Option<bool>,
    }
    Raid {
        name: String,
        level: Option<String>,
        devices: Vec<String>,
        spares: Option<u32>,
        options: Vec<String>,
    }
    Luks {
        name: String,
        device: Option<String>,
        key_file: Resource,
        label: Option<String>,
        uuid: Option<String>,
        options: Vec<String>,
        open_options: Vec<String>,
        discard: Option<bool>,
        wipe_volume: Option<bool>,
        clevis: Clevis,
        cex: Cex,
    }
    Clevis {
        custom: Custom,
        tang: Vec<Tang>,
        threshold: Option<u32>,
        tpm2: Option<bool>,
    }
    Custom {
        pin: Option<String>,
        config: Option<String>,
        needs_network: Option<bool>,
    }
    Tang {
        url: String,
        thumbprint: Option<String>,
        advertisement: Option<String>,
    }
    Cex { enabled: Option<bool>, }
    Filesystem {
        device: String,
        format: Option<String>,
        path: Option<String>,
        wipe_filesystem: Option<bool>,
        label: Option<String>,
        uuid: Option<String>,
        options: Vec<String>,
        mount_options: Vec<String>,
    }
    File {
        path: String,
        overwrite: Option<bool>,
        contents: Resource,
        append: Vec<Resource>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    Directory {
        path: String,
        overwrite: Option<bool>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    Link {
        path: String,
        overwrite: Option<bool>,
        user: Owner,
        group: Owner,
        target: Option<String>,
        hard: Option<bool>,
    }
    Owner {
        id: Option<u32>,
        name: Option<String>,
    }
    Systemd { units: Vec<Unit>, }
    Unit {
        name: String,
        enabled: Option<bool>,
        mask: Option<bool>,
        contents: Option<String>,
        dropins: Vec<Dropin>,
    }
    Dropin {
        name: String,
        contents: Option<String>,
    }
}

impl Resource {
    /// The source, if one is named: an empty one names nothing.
    pub fn url(&self) -> Option<&str> {
        self.source.as_deref().filter(|source| !source.is_empty())
    }
}

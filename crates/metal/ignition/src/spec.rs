//! The types of a spec 3.x config for the stages. Fields of later versions are absent in older configs, so one set of
//! types fits all versions.

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
    /// A complete config.
    Config {
        ignition: Ignition,
        kernel_arguments: KernelArguments,
        passwd: Passwd,
        storage: Storage,
        systemd: Systemd,
    }
    /// The settings of Ignition itself.
    Ignition {
        version: String,
        config: References,
        proxy: Proxy,
        security: Security,
        timeouts: Timeouts,
    }
    /// Other configs: those to merge, or the one that replaces this config.
    References {
        merge: Vec<Resource>,
        replace: Resource,
    }
    /// A resource to fetch.
    Resource {
        source: Option<String>,
        compression: Option<String>,
        http_headers: Vec<Header>,
        verification: Verification,
    }
    /// A header of the requests for a resource; without a value it is not sent.
    Header {
        name: String,
        value: Option<String>,
    }
    /// The hash of a resource: `sha256-` or `sha512-` and the hexadecimal digest of its decompressed bytes.
    Verification {
        hash: Option<String>,
    }
    /// The proxies for fetching resources.
    Proxy {
        http_proxy: Option<String>,
        https_proxy: Option<String>,
        no_proxy: Vec<String>,
    }
    Security { tls: Tls, }
    Tls { certificate_authorities: Vec<Resource>, }
    /// Timeouts in seconds; zero means none.
    Timeouts {
        http_response_headers: Option<u64>,
        http_total: Option<u64>,
    }
    /// Words of the kernel command line.
    KernelArguments {
        should_exist: Vec<String>,
        should_not_exist: Vec<String>,
    }
    /// The users and groups of the machine.
    Passwd {
        users: Vec<User>,
        groups: Vec<Group>,
    }
    /// A user to create, change or remove.
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
    /// A group to create, change or remove.
    Group {
        name: String,
        gid: Option<u32>,
        password_hash: Option<String>,
        should_exist: Option<bool>,
        system: Option<bool>,
    }
    /// Disks and their contents, in the order of creation.
    Storage {
        disks: Vec<Disk>,
        raid: Vec<Raid>,
        luks: Vec<Luks>,
        filesystems: Vec<Filesystem>,
        files: Vec<File>,
        directories: Vec<Directory>,
        links: Vec<Link>,
    }
    /// A disk and its partition table.
    Disk {
        device: String,
        wipe_table: Option<bool>,
        partitions: Vec<Partition>,
    }
    /// A partition, by number or, with number 0, by label. A start or size of 0 uses the free space.
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
    /// A Linux software RAID array.
    Raid {
        name: String,
        level: Option<String>,
        devices: Vec<String>,
        spares: Option<u32>,
        options: Vec<String>,
    }
    /// An encrypted volume, which is opened as `/dev/mapper/NAME`.
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
    /// The automatic unlocking of a volume; `threshold` of the listed methods are required.
    Clevis {
        custom: Custom,
        tang: Vec<Tang>,
        threshold: Option<u32>,
        tpm2: Option<bool>,
    }
    /// A custom pin with its Clevis configuration.
    Custom {
        pin: Option<String>,
        config: Option<String>,
        needs_network: Option<bool>,
    }
    /// A Tang server and the thumbprint of its key.
    Tang {
        url: String,
        thumbprint: Option<String>,
        advertisement: Option<String>,
    }
    Cex { enabled: Option<bool>, }
    /// A filesystem to create, or to reuse if one of the same format and label exists.
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
    /// A file with its contents and mode.
    File {
        path: String,
        overwrite: Option<bool>,
        contents: Resource,
        append: Vec<Resource>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    /// A directory, created with its parents.
    Directory {
        path: String,
        overwrite: Option<bool>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    /// A symbolic link or, with `hard`, a hard link.
    Link {
        path: String,
        overwrite: Option<bool>,
        user: Owner,
        group: Owner,
        target: Option<String>,
        hard: Option<bool>,
    }
    /// A user or group by id or by name.
    Owner {
        id: Option<u32>,
        name: Option<String>,
    }
    Systemd { units: Vec<Unit>, }
    /// A systemd unit.
    Unit {
        name: String,
        enabled: Option<bool>,
        mask: Option<bool>,
        contents: Option<String>,
        dropins: Vec<Dropin>,
    }
    /// A drop-in file in `NAME.d`.
    Dropin {
        name: String,
        contents: Option<String>,
    }
}

impl Resource {
    /// Returns the source unless it is missing or empty.
    pub fn url(&self) -> Option<&str> {
        self.source.as_deref().filter(|source| !source.is_empty())
    }
}

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
    /// A whole config, as a machine acts on it.
    Config {
        ignition: Ignition,
        kernel_arguments: KernelArguments,
        passwd: Passwd,
        storage: Storage,
        systemd: Systemd,
    }
    /// What is about Ignition itself, not about the machine.
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
    /// A header of the requests for a resource; without a value it is not sent.
    Header {
        name: String,
        value: Option<String>,
    }
    /// What a resource must be: `sha256-` or `sha512-` and the hexadecimal digest of its unpacked bytes.
    Verification {
        hash: Option<String>,
    }
    /// The proxies that resources are fetched through.
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
    /// Words of the kernel's command line.
    KernelArguments {
        should_exist: Vec<String>,
        should_not_exist: Vec<String>,
    }
    /// Users and groups of the machine.
    Passwd {
        users: Vec<User>,
        groups: Vec<Group>,
    }
    /// A user to be made, changed or removed.
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
    /// A group to be made or removed.
    Group {
        name: String,
        gid: Option<u32>,
        password_hash: Option<String>,
        should_exist: Option<bool>,
        system: Option<bool>,
    }
    /// Disks and what is on them, in the order that they are made in.
    Storage {
        disks: Vec<Disk>,
        raid: Vec<Raid>,
        luks: Vec<Luks>,
        filesystems: Vec<Filesystem>,
        files: Vec<File>,
        directories: Vec<Directory>,
        links: Vec<Link>,
    }
    /// A disk by its device, and its partition table.
    Disk {
        device: String,
        wipe_table: Option<bool>,
        partitions: Vec<Partition>,
    }
    /// A partition by its number or, with number 0, by its label. What is 0 of start and size fills what is free.
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
    /// An array of Linux' software RAID.
    Raid {
        name: String,
        level: Option<String>,
        devices: Vec<String>,
        spares: Option<u32>,
        options: Vec<String>,
    }
    /// An encrypted volume, which opens as `/dev/mapper/NAME`.
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
    /// Who opens a volume in a person's place: with several, `threshold` of them together.
    Clevis {
        custom: Custom,
        tang: Vec<Tang>,
        threshold: Option<u32>,
        tpm2: Option<bool>,
    }
    /// A pin of clevis' own, in its words.
    Custom {
        pin: Option<String>,
        config: Option<String>,
        needs_network: Option<bool>,
    }
    /// A Tang server, known by the thumbprint of its key.
    Tang {
        url: String,
        thumbprint: Option<String>,
        advertisement: Option<String>,
    }
    Cex { enabled: Option<bool>, }
    /// A file system to be made, or taken over where one of the same kind and label is there.
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
    /// A file with its content; permissions are as `open` takes them.
    File {
        path: String,
        overwrite: Option<bool>,
        contents: Resource,
        append: Vec<Resource>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    /// A directory, made with those above it.
    Directory {
        path: String,
        overwrite: Option<bool>,
        mode: Option<u32>,
        user: Owner,
        group: Owner,
    }
    /// A symbolic link or, with `hard`, another name of a file.
    Link {
        path: String,
        overwrite: Option<bool>,
        user: Owner,
        group: Owner,
        target: Option<String>,
        hard: Option<bool>,
    }
    /// A user or group by number or by name.
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
    /// A file that changes a unit, below `NAME.d`.
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

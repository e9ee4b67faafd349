//! The flags of `toolbox`.

use api_config::GoFlag as _;
use clap::Subcommand;

use super::connection::Connection;

/// The subcommands of `toolbox`.
#[derive(Debug, Subcommand)]
pub enum Toolbox {
    /// Renders templates of specs
    Template(TemplateFlags),
    /// Shows a cluster's specs, machines, Nodes and Pods
    Dump(DumpFlags),
    /// Lists or applies add-ons
    #[command(subcommand)]
    Addons(AddonsCommand),
    /// Creates instance groups for AWS by resources
    InstanceSelector(Box<SelectorFlags>),
    /// Makes a machine that is reached by SSH a worker of a cluster on metal
    Enroll(Box<EnrollFlags>),
    /// Is not supported
    #[command(hide = true)]
    Clusterapi(RejectedFlags),
}

/// The flags of `toolbox enroll`.
#[derive(clap::Args, Debug)]
pub struct EnrollFlags {
    /// The cluster
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// The instance group of the machine, of the role Node
    #[arg(long)]
    pub(crate) instance_group: String,
    /// The address of the machine, or its name in the configuration of ssh
    #[arg(long)]
    pub(crate) host: String,
    /// The user on the machine; others than root need sudo
    #[arg(long, default_value = "root")]
    pub(crate) ssh_user: String,
    /// The port of the machine's SSH server
    #[arg(long, default_value_t = 22)]
    pub(crate) ssh_port: u16,
    /// Only create the machine's key, and show its Host
    #[arg(long, go_bool(), default_value_t = false)]
    pub(crate) build_host: bool,
    /// The ranges of the machine's Pods
    #[arg(long, value_delimiter = ',')]
    pub(crate) pod_cidr: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Arguments of an unsupported command.
#[derive(clap::Args, Debug)]
pub struct RejectedFlags {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) arguments: Vec<String>,
}

/// The flags of `toolbox template`.
#[derive(clap::Args, Debug)]
pub struct TemplateFlags {
    /// The value clusterName, unless the values contain it
    pub(crate) cluster: Option<String>,
    /// Files, or directories of files, with values
    #[arg(long, value_delimiter = ',')]
    pub(crate) values: Vec<String>,
    /// Values, such as a=1,b.c=x
    #[arg(long)]
    pub(crate) set: Vec<String>,
    /// Values that are strings
    #[arg(long)]
    pub(crate) set_string: Vec<String>,
    /// Templates, or directories of templates
    #[arg(long, value_delimiter = ',')]
    pub(crate) template: Vec<String>,
    /// Files, or directories of files, for the function include
    #[arg(long, value_delimiter = ',')]
    pub(crate) snippets: Vec<String>,
    /// A file with the recommended versions, for the channel functions
    #[arg(long, default_value = "stable")]
    pub(crate) channel: String,
    /// The output file [default: the standard output]
    #[arg(long, alias = "output")]
    pub(crate) out: Option<String>,
    /// Show this value only
    #[arg(long)]
    pub(crate) config_value: Option<String>,
    /// Reject templates that use absent values
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) fail_on_missing: bool,
    /// Parse the rendered YAML, and write it anew
    #[arg(long, go_bool(), default_value_t = false)]
    pub(crate) format_yaml: bool,
}

/// The flags of `toolbox dump`.
#[derive(clap::Args, Debug)]
pub struct DumpFlags {
    /// The cluster
    pub(crate) cluster: Option<String>,
    /// yaml or json
    #[arg(short, long, default_value = "yaml", value_parser = ["yaml", "json"])]
    pub(crate) output: String,
    /// Include the machines
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) cloud_resources: bool,
    /// Include Nodes and Pods
    #[arg(long, go_bool(), default_value_t = false)]
    pub(crate) k8s_resources: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The directory for machines' logs, with cloud local
    #[arg(long)]
    pub(crate) dir: Option<String>,
    /// The most machines whose logs are written
    #[arg(long, default_value_t = 500)]
    pub(crate) max_nodes: usize,
    /// The time limit for the logs of one machine
    #[arg(long, default_value = "1m")]
    pub(crate) node_dump_timeout: api_config::GoDuration,
    /// Is rejected: kops reads the logs of machines of cloud local without SSH
    #[arg(long)]
    pub(crate) private_key: Option<String>,
    /// Is rejected: kops reads the logs of machines of cloud local without SSH
    #[arg(long)]
    pub(crate) ssh_user: Option<String>,
}

/// The subcommands of `toolbox addons`.
#[derive(Debug, Subcommand)]
pub enum AddonsCommand {
    /// Lists the applied add-ons
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Applies the add-ons of a channel
    Apply {
        /// The channel: file:///path or s3://bucket/path
        channel: String,
        /// Apply them
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        connection: Connection,
    },
}

/// The flags of `toolbox instance-selector`.
#[derive(clap::Args, Debug)]
pub struct SelectorFlags {
    /// The name of the instance group, or the beginning of several ones' names
    pub(crate) instance_group: String,
    /// A file with machine types, as aws ec2 describe-instance-types prints them (JSON)
    #[arg(long)]
    pub(crate) machine_types: Option<String>,
    /// A regular expression of allowed machine types, such as m[3-5]
    #[arg(long)]
    pub(crate) allow_list: Option<String>,
    /// A regular expression of rejected machine types
    #[arg(long)]
    pub(crate) deny_list: Option<String>,
    /// amd64 or arm64
    #[arg(long, default_value = "amd64", value_parser = ["amd64", "arm64"])]
    pub(crate) cpu_architecture: String,
    /// The number of virtual CPUs
    #[arg(long)]
    pub(crate) vcpus: Option<u64>,
    /// The fewest virtual CPUs
    #[arg(long)]
    pub(crate) vcpus_min: Option<u64>,
    /// The most virtual CPUs
    #[arg(long)]
    pub(crate) vcpus_max: Option<u64>,
    /// The memory, such as 4gb
    #[arg(long)]
    pub(crate) memory: Option<String>,
    /// The least memory
    #[arg(long)]
    pub(crate) memory_min: Option<String>,
    /// The most memory
    #[arg(long)]
    pub(crate) memory_max: Option<String>,
    /// The number of GPUs
    #[arg(long)]
    pub(crate) gpus: Option<u64>,
    /// The fewest GPUs
    #[arg(long)]
    pub(crate) gpus_min: Option<u64>,
    /// The most GPUs
    #[arg(long)]
    pub(crate) gpus_max: Option<u64>,
    /// The memory of all GPUs, such as 4gb
    #[arg(long)]
    pub(crate) gpu_memory: Option<String>,
    /// The least memory of all GPUs
    #[arg(long)]
    pub(crate) gpu_memory_min: Option<String>,
    /// The most memory of all GPUs
    #[arg(long)]
    pub(crate) gpu_memory_max: Option<String>,
    /// The number of network interfaces
    #[arg(long)]
    pub(crate) network_interfaces: Option<u64>,
    /// The fewest network interfaces
    #[arg(long)]
    pub(crate) network_interfaces_min: Option<u64>,
    /// The most network interfaces
    #[arg(long)]
    pub(crate) network_interfaces_max: Option<u64>,
    /// Only burstable types, or none
    #[arg(long, go_bool())]
    pub(crate) burst_support: Option<bool>,
    /// Only types with enhanced networking, or none
    #[arg(long, go_bool())]
    pub(crate) ena_support: Option<bool>,
    /// The strategy of placement groups: cluster, partition or spread
    #[arg(long, default_value = "", value_parser = ["", "cluster", "partition", "spread"])]
    pub(crate) placement_group_strategy: String,
    /// Create several instance groups, each with twice the memory for a virtual CPU
    #[arg(long)]
    pub(crate) ig_count: Option<u32>,
    /// Add the tags that cluster-autoscaler discovers
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) cluster_autoscaler: bool,
    /// Select from current types for general use, by default with 4 virtual CPUs and 2 GiB of memory for each
    #[arg(long)]
    pub(crate) flexible: bool,
    /// Select types with similar resources as this type
    #[arg(long)]
    pub(crate) base_instance_type: Option<String>,
    /// The ratio of virtual CPUs to memory in GiB, such as 1:2
    #[arg(long)]
    pub(crate) vcpus_to_memory_ratio: Option<String>,
    /// The most machine types
    #[arg(long, default_value_t = 20)]
    pub(crate) max_results: usize,
    /// The smallest size of the group
    #[arg(long, default_value_t = 1)]
    pub(crate) node_count_min: u32,
    /// The largest size of the group
    #[arg(long, default_value_t = 10)]
    pub(crate) node_count_max: u32,
    /// Additional security groups
    #[arg(long, value_delimiter = ',')]
    pub(crate) node_security_groups: Vec<String>,
    /// The size of machines' disks, in GiB
    #[arg(long)]
    pub(crate) node_volume_size: Option<u32>,
    /// The subnets [default: all of the cluster]
    #[arg(long, value_delimiter = ',')]
    pub(crate) subnets: Vec<String>,
    /// spot or on-demand
    #[arg(long, default_value = "on-demand", value_parser = ["spot", "on-demand"])]
    pub(crate) usage_class: String,
    /// Show the instance group, and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// yaml or json, with --dry-run
    #[arg(short, long, default_value = "yaml", value_parser = ["yaml", "json"])]
    pub(crate) output: String,
}

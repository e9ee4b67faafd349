//! The errors of commands.

use crate::flags::Target;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Object(#[from] kops_store::Error),
    #[error(transparent)]
    Local(#[from] kops_local::Error),
    #[error(transparent)]
    Node(#[from] kops_node::Error),
    #[error(transparent)]
    Aws(#[from] kops_aws::Error),
    #[error(transparent)]
    Parse(#[from] kops_api::Error),
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    Values(#[from] kops_core::template::TemplateError),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Machine(#[from] instances::Error),
    /// The error of a call of etcd.
    #[error(transparent)]
    Etcd(#[from] bootstrap::Error),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
    #[error("{flag} {problem}")]
    Flag { flag: &'static str, problem: &'static str },
    #[error("cannot use both {first} and {second}")]
    FlagPair { first: &'static str, second: &'static str },
    #[error("cannot specify cluster via --name and positional argument")]
    TwoNames,
    #[error("could not find user {0:?}")]
    MissingUser(String),
    #[error(
        "the load balancer of cluster {0:?} is not looked up yet: give its address with --api-server, or use \
         --internal"
    )]
    LoadBalancer(String),
    #[error("unknown output format: {0:?}")]
    OutputFormat(String),
    #[error("{0} output format is not (currently) supported for secrets")]
    SecretOutput(String),
    #[error("unknown secret type {0:?}")]
    SecretType(String),
    #[error("use '{0}' instead")]
    UseInstead(&'static str),
    #[error("unable to parse {syntax} {file}: it is not one object")]
    SecretSyntax { syntax: &'static str, file: String },
    #[error(
        "failed to create the {0} secret as it already exists. Pass the `--force` flag to replace an existing secret"
    )]
    SecretExists(&'static str),
    #[error(
        "secret {0:?}: machines of cloud local do not use it yet; if it is stored, delete it with kops delete secret"
    )]
    LocalSecret(String),
    #[error(
        "secret \"encryptionconfig\" is not an EncryptionConfiguration with fields of the API server; see the \
         documentation of its encryption at rest"
    )]
    EncryptionConfig,
    #[error(
        "spec.encryptionConfig of cluster {0:?} needs the secret \"encryptionconfig\"; create it with kops create \
         secret encryptionconfig"
    )]
    MissingEncryptionConfig(String),
    #[error(
        "spec.encryptionConfig of cluster {0:?} cannot end yet, because stored data may be encrypted: make identity \
         the first provider of the secret \"encryptionconfig\", run kops update cluster --yes and kops rolling-update \
         cluster --yes, and write all encrypted objects again"
    )]
    EncryptionEnd(String),
    #[error("unhandled field: {0:?}")]
    UnhandledField(String),
    #[error("unhandled kind {kind:?} in {file}")]
    UnhandledKind { file: String, kind: &'static str },
    #[error("unknown role {0:?}")]
    UnknownRole(String),
    #[error("must set output flag; yaml or json")]
    MissingOutput,
    #[error(
        "instance group {group:?} has several scaling groups: {found}; delete those that are not the cluster's, or \
         remove their tag kops.k8s.io/instancegroup"
    )]
    SeveralScalingGroups { group: String, found: String },
    #[error(
        "several Nodes claim instance {instance}: {nodes}; delete the Nodes that are not those of this machine"
    )]
    SeveralNodes { instance: String, nodes: String },
    #[error("could not find instance {0}")]
    MissingInstance(String),
    #[error(
        "error finding node name for instance: {0}; it is not a member of the cluster. Use --cloudonly to do a \
         deletion without confirming progress with the k8s API"
    )]
    MissingNode(String),
    #[error("--copy: copying assets is not supported; copy the shown images and files yourself")]
    CopyAssets,
    #[error(
        "cluster {0:?} has spec.assets: the original locations of its assets are not known here; use upstream's kops \
         get assets"
    )]
    MovedAssets(String),
    #[error("{flag} is for --target={target}")]
    TargetFlag { flag: &'static str, target: Target },
    #[error("{what} does not match, but the lifecycle of its kind is ExistsAndValidates")]
    StoreLifecycle { what: String },
    #[error(
        "--instance-group: the program of the machines differs from this one, and machines of other groups could not \
         start with it; update all groups together"
    )]
    ProgramChanged,
    #[error(
        "--instance-group: the cluster has no machines yet; make them all by kops update cluster --yes"
    )]
    NoMachines,
    #[error(
        "logs of {machines} are missing, because --node-dump-timeout has passed; give more time"
    )]
    LateLogs { machines: String },
    #[error("cannot specify {flag} with \"all\"")]
    FlagWithAll { flag: &'static str },
    #[error("cloud {0:?} is not supported: use --cloud local, metal, aws or gce")]
    CloudFlag(String),
    #[error("{flag} is for --cloud {of}, not --cloud {cloud}")]
    ForeignFlag { flag: &'static str, of: &'static str, cloud: String },
    #[error(
        "cluster {cluster:?} is on gce, whose resources only Terraform creates: use kops update cluster \
         --target=terraform"
    )]
    TerraformOnly { cluster: String },
    #[error(
        "instance group {group:?} has no machine type: set --control-plane-size and --node-size, or \
         defaultMachineTypes in the file of --known"
    )]
    MachineType { group: String },
    #[error(
        "cluster {cluster:?} is stored, but its changes cannot be shown: {cause}; mend this and run kops update \
         cluster {cluster}"
    )]
    Preview { cluster: String, cause: Box<Error> },
    #[error("unable to render template {path}: {cause}")]
    Template { path: String, cause: Box<kops_core::template::TemplateError> },
    #[error("{path} contains more than {limit} files")]
    Files { path: String, limit: usize },
    #[error("{command} is not supported: {reason}")]
    Rejected { command: &'static str, reason: &'static str },
    #[error("{flag}: {cause}")]
    Pattern { flag: &'static str, cause: regex::Error },
    #[error("parsing the arguments of a step: {0}")]
    Arguments(clap::Error),
    #[error("invalid instance group role {0:?}: it is control-plane, apiserver, node or bastion")]
    Role(String),
    #[error("no {0} found")]
    NoneFound(&'static str),
    #[error(
        "cannot {operation} on {host} by ssh: {cause}; check that ssh reaches the machine and that its user is root or \
         has sudo without a password"
    )]
    Ssh { operation: &'static str, host: String, cause: String },
    #[error(
        "Host kops-system/{name} is of another machine or instance group; delete it if that machine is gone, or give \
         this machine another host name"
    )]
    OtherHost { name: String },
    #[error(
        "the cluster does not serve hosts.kops.k8s.io, or has no namespace kops-system; apply upstream's \
         k8s/crds/kops.k8s.io_hosts.yaml, and create the namespace"
    )]
    HostKind,
    #[error("{kind} not found {name:?}")]
    NotFound { kind: &'static str, name: String },
    #[error("{files}: no objects found")]
    NoObjects { files: String },
    #[error("{file}: kind {kind} is not supported yet; remove it")]
    Kind { file: String, kind: &'static str },
    #[error("{file}: it is larger than {limit} bytes")]
    Size { file: String, limit: u64 },
    #[error("must specify {label:?} label with cluster name on {kind} {name:?}")]
    ClusterLabel { label: &'static str, kind: &'static str, name: String },
    #[error("the editor {editor:?} ended with {status}")]
    Editor { editor: String, status: std::process::ExitStatus },
    #[error("the edited text has {count} documents, but one object is edited at a time")]
    EditedDocuments { count: usize },
    #[error("{cause}; a copy of your changes is in {}", path.display())]
    EditedCopy { path: std::path::PathBuf, cause: Box<Error> },
    #[error("the edited object is {edited}, not {stored}: objects cannot be renamed")]
    Renamed { edited: String, stored: String },
    #[error(
        "cluster {cluster:?} was last updated by kOps {last}, but this is {own}: use the newer one"
    )]
    Release { cluster: String, last: kops_core::Version, own: kops_core::Version },
    #[error("{operation} {keyset:?} is not supported")]
    Keyset { operation: &'static str, keyset: String },
    #[error("can only promote to one keyset at a time")]
    Promotion,
    #[error("must specify names of keypairs to trust")]
    KeypairNames,
    #[error(
        "the spec's stores are in buckets of several regions ({0}), but the configuration has one provider for them: \
         use one region"
    )]
    Regions(String),
    #[error("the cluster's API does not answer: {0}; --cloudonly replaces machines without it")]
    Unreachable(kops_local::Error),
    #[error(
        "machines {machines} still run, because the cluster's API does not answer and they cannot be drained: \
         {source}; run kops update cluster --yes again once it answers"
    )]
    Shrink { machines: String, source: Box<Error> },
    #[error("machine {machine:?} did not end within {seconds} s; see {log}")]
    NotEnded { machine: String, seconds: u64, log: String },
    #[error("{file}: the plan is out of date: {difference}; make a new one with --plan-out")]
    StalePlan { file: String, difference: String },
    #[error("{file} is not a plan of --plan-out: {source}")]
    PlanFile { file: String, source: serde_json::Error },
    #[error("stopped by the user; run kops rolling-update cluster --yes again to continue")]
    Stopped,
    #[error("the machines did not end within {seconds} s; run kops delete cluster --yes again")]
    Deletion { seconds: u64 },
    #[error("draining node {node:?} took longer than {seconds} s: {reasons}")]
    Drain { node: String, seconds: u64, reasons: String },
    #[error("{address} still answers after {seconds} s")]
    Shutdown { address: std::net::SocketAddr, seconds: u64 },
    #[error("machine {machine:?} ended, but was not replaced within {seconds} s; {advice}")]
    Replacement { machine: String, seconds: u64, advice: String },
    #[error("cluster did not validate within {seconds} s: {messages}")]
    NotValid { seconds: u64, messages: String },
    #[error("Validation failed: cluster {cluster} has {count} failures")]
    Validation { cluster: String, count: usize },
}

impl Error {
    /// Returns the exit code of upstream's command for the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Validation { .. } => 2,
            Self::Stopped => 3,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_exit_codes_of_upstream() {
        let invalid = Error::Validation { cluster: "a.local".to_owned(), count: 1 };
        assert_eq!([invalid, Error::Stopped, Error::Promotion].map(|e| e.exit_code()), [2, 3, 1]);
    }
}

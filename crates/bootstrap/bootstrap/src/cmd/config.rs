//! The command `config`.

use std::path::PathBuf;

use api_config::yaml;
use bootstrap_core::{
    config::{self, Kinds},
    images,
};
use clap::Subcommand;
use serde_json::json;

use super::{flags::ClusterFlags, global::WithGlobal, output::Output, program::Program};
use crate::{
    Error, FlagError,
    error::io,
    host::Host,
    preflight::{self, Ignored},
};

/// The flags of `config`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Accepted for compatibility; no command here connects to a cluster
    #[arg(long, global = true, default_value = "/etc/kubernetes/admin.conf")]
    kubeconfig: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print configuration
    Print {
        #[command(subcommand)]
        what: Print,
    },
    /// Read an older version of the kubeadm configuration API types from a file, and output the similar config object
    /// for the newer version
    Migrate(Migrate),
    /// Read a file containing the kubeadm configuration API and report any errors found
    Validate(Validate),
    /// Interact with container images used by kubeadm
    Images {
        #[command(subcommand)]
        what: Images,
    },
}

#[derive(Debug, Subcommand)]
enum Print {
    /// Print default init configuration, that can be used for 'init'
    #[command(name = "init-defaults")]
    Init {
        /// A comma-separated list of component config API objects to print: KubeletConfiguration,
        /// KubeProxyConfiguration
        #[arg(long, value_delimiter = ',')]
        component_configs: Vec<String>,
    },
    /// Print default join configuration, that can be used for 'join'
    #[command(name = "join-defaults")]
    Join,
    /// Print default reset configuration, that can be used for 'reset'
    #[command(name = "reset-defaults")]
    Reset,
    /// Print default upgrade configuration, that can be used for 'upgrade'
    #[command(name = "upgrade-defaults")]
    Upgrade,
}

#[derive(Debug, clap::Args)]
struct Migrate {
    /// Path to the config file that is using an old API version and should be converted
    #[arg(long)]
    old_config: PathBuf,
    /// Path to the resulting equivalent config file; standard output without it
    #[arg(long)]
    new_config: Option<PathBuf>,
    /// Accepted for compatibility; there are no experimental versions
    #[arg(long)]
    allow_experimental_api: bool,
}

#[derive(Debug, clap::Args)]
struct Validate {
    /// Path to the config file to validate
    #[arg(long)]
    config: PathBuf,
    #[arg(long)]
    allow_experimental_api: bool,
    /// Do not warn about deprecated API versions
    #[arg(long)]
    allow_deprecated_api: bool,
}

#[derive(Debug, Subcommand)]
enum Images {
    /// Print a list of images kubeadm will use
    List {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Pull images used by kubeadm
    Pull(Box<ClusterFlags>),
}

pub(super) async fn run(args: WithGlobal<Args>, program: Program) -> Result<(), Error> {
    let WithGlobal { own: args, global } = args;
    match args.command {
        Command::Print { what } => print(what, program),
        Command::Migrate(args) => migrate(&args),
        Command::Validate(args) => validate(&args, program),
        Command::Images { what: Images::List { output, flags } } => {
            let images = image_names(&global.add_to(*flags), program)?;
            match output.of("Images", vec![json!({"images": images})])? {
                Some(text) => print!("{text}"),
                None => images.iter().for_each(|image| println!("{image}")),
            }
            Ok(())
        }
        Command::Images { what: Images::Pull(flags) } => {
            let flags = global.add_to(*flags);
            let documents = flags.documents()?;
            let all = flags.init(documents, program)?;
            let layout = flags.layout(&all.cluster.certificates_dir);
            let mut node = flags.node(all, layout, program)?;
            // An explicit pull fetches the registry's current image.
            node.config.init.node_registration.image_pull_policy = "Always".to_owned();
            preflight::ensure_images(&node, &Ignored::default()).await?;
            for image in images::all(&node.config.cluster) {
                println!("[config/images] Pulled {image}");
            }
            Ok(())
        }
    }
}

fn image_names(flags: &ClusterFlags, program: Program) -> Result<Vec<String>, Error> {
    let documents = flags.documents()?;
    Ok(images::all(&flags.init(documents, program)?.cluster))
}

fn print(what: Print, program: Program) -> Result<(), Error> {
    let documents = match what {
        Print::Init { component_configs } => {
            let kinds = ["KubeletConfiguration", "KubeProxyConfiguration"];
            if let Some(unknown) = component_configs.iter().find(|c| !kinds.contains(&c.as_str())) {
                return Err(FlagError::ComponentConfig { kinds, unknown: unknown.clone() }.into());
            }
            let all = config::init_defaults(Kinds::WithComponents, program.image_repository())?;
            all.into_iter()
                .filter(|d| {
                    let kind = api_config::gvk(d).1;
                    !kinds.contains(&kind) || component_configs.iter().any(|c| c == kind)
                })
                .collect()
        }
        Print::Join => config::join_defaults(&rt::node_name())?,
        Print::Reset => config::reset_defaults()?,
        Print::Upgrade => config::upgrade_defaults()?,
    };
    print!("{}", yaml::to_string_all(&documents)?);
    Ok(())
}

fn read(path: &std::path::Path) -> Result<config::Read, Error> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    Ok(config::read(&text)?)
}

fn migrate(args: &Migrate) -> Result<(), Error> {
    let read = read(&args.old_config)?;
    if let Some(first) = read.strict.first() {
        return Err(FlagError::Strict(vec![first.clone()]).into());
    }
    let text = yaml::to_string_all(&config::migrate(&read)?)?;
    match &args.new_config {
        Some(path) => Ok(pki::write_file(path, text.as_bytes(), pki::KEY_MODE)?),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

/// Unknown fields are errors only in this command.
fn validate(args: &Validate, program: Program) -> Result<(), Error> {
    let read = read(&args.config)?;
    for warning in read.warnings.iter().filter(|_| !args.allow_deprecated_api) {
        eprintln!("{warning}");
    }
    if !read.strict.is_empty() {
        return Err(FlagError::Strict(read.strict).into());
    }
    let documents = read.documents;
    let facts = Host::default().facts(program.image_repository());
    if let Some(mut join) = documents.join.clone() {
        config::default_join(&mut join, &facts);
        config::validate_join(&join)?;
    }
    if let Some(mut reset) = documents.reset.clone() {
        config::default_reset(&mut reset);
        config::validate_reset(&reset)?;
    }
    if let Some(mut upgrade) = documents.upgrade.clone() {
        config::default_upgrade(&mut upgrade);
        config::validate_upgrade(&upgrade)?;
    }
    if documents.init.is_some() || documents.cluster.is_some() {
        ClusterFlags::default().init(documents, program)?;
    }
    println!("ok");
    Ok(())
}

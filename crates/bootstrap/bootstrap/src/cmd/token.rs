//! The command `token`.

use std::path::{Path, PathBuf};

use api_config::{GoDuration, kubeadm::BootstrapToken};
use bootstrap_core::{
    constants::BOOTSTRAPPERS_GROUP,
    endpoint, objects,
    tokens::{self, Token, TokenInfo, is_token_id},
};
use clap::Subcommand;
use client::{Client, ListOptions, Resource};
use serde_json::{Value, json};

use super::{flags::ClusterFlags, global::WithGlobal, output::Output, program::Program};
use crate::{
    Error, FlagError,
    cluster::{self, get},
    init::{join_command, token_secret},
};

/// The flags of `token`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The kubeconfig file to use when talking to the cluster
    #[arg(long, global = true, default_value = "/etc/kubernetes/admin.conf")]
    kubeconfig: PathBuf,
    /// Don't apply any changes; just output what would be done
    #[arg(long, global = true)]
    dry_run: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create bootstrap tokens on the server
    Create(Box<Create>),
    /// List bootstrap tokens on the server
    List(Output),
    /// Delete bootstrap tokens on the server
    Delete { tokens: Vec<String> },
    /// Generate and print a bootstrap token, but do not create it on the server
    Generate,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// The token; a random one is generated if it is omitted
    token: Option<String>,
    /// A human friendly description of how this token is used
    #[arg(long, default_value = "")]
    description: String,
    /// Extra groups that this token will authenticate as when used for authentication
    #[arg(long, value_delimiter = ',', default_value = BOOTSTRAPPERS_GROUP)]
    groups: Vec<String>,
    /// Describes the ways in which this token can be used
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    usages: Vec<String>,
    /// The duration before the token is automatically deleted; 0 never expires
    #[arg(long, default_value = "24h0m0s")]
    ttl: String,
    /// Print the full 'join' command needed to join the cluster
    #[arg(long)]
    print_join_command: bool,
    /// With --print-join-command, print the full command to join as a control plane
    #[arg(long)]
    certificate_key: Option<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

fn new_token() -> Token {
    Token::generate(|below| rt::random_in(0..below))
}

pub(super) async fn run(args: WithGlobal<Args>, program: Program) -> Result<(), Error> {
    let WithGlobal { own: args, global } = args;
    let kubeconfig = global.path(&args.kubeconfig);
    match args.command {
        Command::Generate => {
            println!("{}", new_token().reveal());
            Ok(())
        }
        Command::Create(mut create) => {
            create.cluster = global.add_to(create.cluster);
            create.cluster.dry_run |= args.dry_run;
            run_create(*create, &kubeconfig, program).await
        }
        Command::List(output) => list(&cluster::client(&kubeconfig)?, output).await,
        Command::Delete { tokens } => {
            delete(&cluster::client(&kubeconfig)?, &tokens, args.dry_run).await
        }
    }
}

async fn run_create(args: Create, kubeconfig: &Path, program: Program) -> Result<(), Error> {
    let client = &cluster::client(kubeconfig)?;
    let token = match &args.token {
        Some(text) => text.parse()?,
        None => new_token(),
    };
    let entry = BootstrapToken {
        token: token.reveal(),
        description: args.description,
        ttl: Some(args.ttl.parse::<GoDuration>()?),
        usages: args.usages,
        groups: args.groups,
        ..BootstrapToken::default()
    };
    // Run the checks for tokens in a configuration file.
    let mut documents = args.cluster.documents()?;
    documents.init.get_or_insert_default().bootstrap_tokens = vec![entry.clone()];
    let mut all = args.cluster.init(documents, program)?;
    if get(client, &Resource::SECRETS, "kube-system", &token.secret_name()).await?.is_some() {
        return Err(Error::TokenExists(token.id));
    }
    let secret = token_secret(&token, &entry, rt::now());
    if all.init.dry_run {
        println!("[dryrun] Would create:\n{}", api_config::yaml::to_string(&secret)?);
    } else {
        cluster::apply(client, &secret).await?;
    }
    if !args.print_join_command {
        println!("{}", token.reveal());
        return Ok(());
    }
    // The endpoint in the cluster's configuration takes precedence over the default.
    if let Some(map) = get(client, &Resource::CONFIG_MAPS, "kube-system", "kubeadm-config").await? {
        all.cluster = objects::read_kubeadm_config(&map)?;
    }
    let layout = args.cluster.layout(&all.cluster.certificates_dir);
    let admin = api_config::Kubeconfig::load(kubeconfig)?;
    if all.cluster.control_plane_endpoint.is_empty() {
        let server = admin.current()?.cluster.server.trim_start_matches("https://").to_owned();
        all.cluster.control_plane_endpoint = server;
    }
    debug_assert!(
        !endpoint::stable_host_port(&all.cluster, &all.init.local_api_endpoint).is_empty()
    );
    let node = args.cluster.node(all, layout, program)?;
    let command = join_command(&node, &token.reveal())?.replace(" \\\n\t", " ");
    match args.certificate_key {
        Some(key) => println!("{command} --control-plane --certificate-key {key}"),
        None => println!("{command}"),
    }
    Ok(())
}

async fn secrets(client: &Client) -> Result<Vec<Value>, Error> {
    let options = ListOptions {
        field_selector: format!("type={}", tokens::SECRET_TYPE),
        ..ListOptions::default()
    };
    let list = client.list::<Value>(&Resource::SECRETS, "kube-system", &options).await.map_err(
        |source| Error::Api { operation: "list", subject: "bootstrap tokens".to_owned(), source },
    )?;
    Ok(list.items)
}

async fn list(client: &Client, output: Output) -> Result<(), Error> {
    let secrets = secrets(client).await?;
    let tokens = secrets.iter().filter_map(|secret| match tokens::listed(secret) {
        Ok(token) => Some(token),
        Err(e) => {
            tracing::warn!("{e}");
            None
        }
    });
    let tokens: Vec<TokenInfo> = tokens.collect();
    if let Some(text) = output.of("BootstrapToken", tokens.iter().map(object).collect())? {
        print!("{text}");
        return Ok(());
    }
    println!("{:<25}{:<24}{:<26}{:<56}EXTRA GROUPS", "TOKEN", "EXPIRES", "USAGES", "DESCRIPTION");
    for token in tokens {
        let cell = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
        println!(
            "{:<25}{:<24}{:<26}{:<56}{}",
            token.token,
            token.expiration.as_deref().unwrap_or("<never>"),
            cell(&token.usages.join(",")),
            cell(&token.description),
            cell(&token.groups.join(","))
        );
    }
    Ok(())
}

/// Returns a token for structured output, without empty fields.
fn object(token: &TokenInfo) -> Value {
    let mut object = json!({"token": token.token});
    if !token.description.is_empty() {
        object["description"] = json!(token.description);
    }
    if let Some(expires) = &token.expiration {
        object["expires"] = json!(expires);
    }
    for (name, values) in [("usages", &token.usages), ("groups", &token.groups)] {
        if !values.is_empty() {
            object[name] = json!(values);
        }
    }
    object
}

async fn delete(client: &Client, tokens: &[String], dry_run: bool) -> Result<(), Error> {
    if tokens.is_empty() {
        return Err(FlagError::NoToken.into());
    }
    for text in tokens {
        let id = if is_token_id(text) { text.clone() } else { text.parse::<Token>()?.id };
        if dry_run {
            println!("[dryrun] Would delete bootstrap token {id:?}");
            continue;
        }
        client
            .delete(
                &Resource::SECRETS,
                "kube-system",
                &tokens::secret_name(&id),
                &Default::default(),
            )
            .await
            .map_err(|source| Error::Api {
                operation: "delete",
                subject: format!("bootstrap token {id:?}"),
                source,
            })?;
        println!("bootstrap token {id:?} deleted");
    }
    Ok(())
}

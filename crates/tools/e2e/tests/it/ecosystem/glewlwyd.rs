//! Glewlwyd, an OpenID Connect provider: its users log in to the cluster by a credential plugin of kubectl.

use std::{fs, path::PathBuf};

use e2e::{Background, Cluster, Output, Session, share_machine, until};
use serde_json::{Value, json};
use testkit::write_script;

const URL: &str = "https://127.0.0.1:4593/api";
const ISSUER: &str = "https://127.0.0.1:4593/api/oidc";
const DATABASE: &str = "/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3";

/// Creates the certificate, the database and the configuration in the working directory.
const PREPARE: &str = r#"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=idp \
        -addext subjectAltName=IP:127.0.0.1 -keyout tls.key -out tls.crt
    sqlite3 glewlwyd.db <"$1"
    cat >glewlwyd.conf <<END
port=4593
external_url="https://127.0.0.1:4593"
api_prefix="api"
login_url="login.html"
log_mode="file"
log_level="WARNING"
log_file="$PWD/log"
cookie_domain="127.0.0.1"
cookie_secure=1
session_expiration=2419200
session_key="SESSION"
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="/usr/lib/glewlwyd/user"
client_module_path="/usr/lib/glewlwyd/client"
user_auth_scheme_module_path="/usr/lib/glewlwyd/scheme"
plugin_module_path="/usr/lib/glewlwyd/plugin"
use_secure_connection=true
secure_connection_key_file="$PWD/tls.key"
secure_connection_pem_file="$PWD/tls.crt"
hash_algorithm="SHA512"
database={type="sqlite3" path="$PWD/glewlwyd.db"};
END"#;

/// Calls the API with the session of a user, which it starts: user, password, then curl's arguments.
const CALL: &str = r#"
    set -e
    cd "$(dirname "$0")"
    login=$(printf '{"username":"%s","password":"%s"}' "$1" "$2")
    jar=$(mktemp)
    trap 'rm "$jar"' EXIT
    shift 2
    call() { curl --silent --show-error --fail --cacert tls.crt --cookie "$jar" --cookie-jar "$jar" "$@"; }
    call --header Content-Type:application/json --data "$login" https://127.0.0.1:4593/api/auth/
    call --header Content-Type:application/json "$@""#;

/// Logs in and prints an ID token of a client: the client, user and password.
const TOKEN: &str = r#"
    query="response_type=id_token&g_continue&scope=openid&nonce=$$&redirect_uri=https://127.0.0.1/done"
    location=$("$(dirname "$0")/call" "$2" "$3" --output /dev/null --write-out '%{redirect_url}' \
        "https://127.0.0.1:4593/api/oidc/auth?$query&client_id=$1") || exit 1
    case $location in *id_token=*) ;; *) echo "no token: $location" >&2; exit 1;; esac
    token=${location#*id_token=}
    echo "${token%%&*}""#;

/// A credential plugin of kubectl.
const PLUGIN: &str = r#"
    token=$("$(dirname "$0")/token" "$@") || exit 1
    printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$token""#;

/// The provider, with the user ada and the clients `kubernetes` and `other`.
struct Provider<'a> {
    cluster: &'a Cluster,
    directory: PathBuf,
    process: Option<Background>,
}

impl<'a> Provider<'a> {
    fn create(cluster: &'a Cluster) -> Self {
        let directory = cluster.directory.join("idp");
        fs::create_dir_all(&directory).unwrap();
        let mut provider = Self { cluster, directory, process: None };
        provider.shell(&format!("set -- {DATABASE}; {PREPARE}")).ok();
        for (name, script) in [("call", CALL), ("token", TOKEN), ("plugin", PLUGIN)] {
            write_script(&provider.directory.join(name), script);
        }
        provider.start();
        provider.admin("POST", "mod/plugin/", &provider.plugin());
        let ada = json!({"username": "ada", "email": "ada@example.com", "password": "lovelace", "enabled": true,
            "scope": ["g_profile", "openid"]});
        provider.admin("POST", "user/", &ada);
        for client in ["kubernetes", "other"] {
            let client = json!({"client_id": client, "confidential": false, "enabled": true, "scope": ["openid"],
                "redirect_uri": ["https://127.0.0.1/done"], "authorization_type": ["id_token"]});
            provider.admin("POST", "client/", &client);
        }
        for client in ["kubernetes", "other"] {
            let path = format!("auth/grant/{client}");
            provider.call(["ada", "lovelace"], "PUT", &path, &json!({"scope": "openid"}));
        }
        provider
    }

    fn shell(&self, script: &str) -> Output {
        let script = format!("set -e; cd {}; {script}", self.directory.display());
        self.cluster.run("sh", &["-c", &script])
    }

    fn start(&mut self) {
        let config = format!("--config-file={}/glewlwyd.conf", self.directory.display());
        let command = self.cluster.namespace.command("glewlwyd", &[&config]);
        self.process = Some(Background::start(command));
        until("the provider", || {
            self.shell(&format!("curl --silent --cacert tls.crt {URL}/")).ok_if(|_| true)
        });
    }

    fn stop(&mut self) {
        self.process = None;
    }

    #[track_caller]
    fn call(&self, [user, password]: [&str; 2], method: &str, path: &str, body: &Value) {
        let script = format!(
            "./call {user} {password} --request {method} --data @- {URL}/{path} <<'END'\n{body}\nEND"
        );
        self.shell(&script).ok();
    }

    #[track_caller]
    fn admin(&self, method: &str, path: &str, body: &Value) {
        self.call(["admin", "password"], method, path, body);
    }

    /// Creates a key, and returns the settings of the plugin for OpenID Connect. Tokens are valid for an hour.
    fn plugin(&self) -> Value {
        let generate = "openssl ecparam -genkey -name prime256v1 -noout -out key; cat key";
        let key = self.shell(generate).ok();
        let public = self.shell("openssl ec -in key -pubout").ok();
        let groups = json!({"name": "groups", "user-property": "scope", "type": "string", "mandatory": true});
        json!({"name": "oidc", "display_name": "oidc", "module": "oidc", "enabled": true, "parameters": {
            "iss": ISSUER, "jwt-type": "ecdsa", "jwt-key-size": "256", "key": key, "cert": public,
            "access-token-duration": 3600, "refresh-token-duration": 3600, "code-duration": 600,
            "refresh-token-rolling": true, "allow-non-oidc": false, "auth-type-code-enabled": false,
            "auth-type-token-enabled": false, "auth-type-id-token-enabled": true, "auth-type-none-enabled": false,
            "auth-type-password-enabled": false, "auth-type-client-enabled": false,
            "auth-type-device-enabled": false, "auth-type-refresh-enabled": false, "subject-type": "public",
            "email-claim": "mandatory", "claims": [groups],
        }})
    }

    /// Signs the next tokens with these settings. The key of the former ones is no longer published.
    fn set_plugin(&self, plugin: &Value) {
        self.admin("PUT", "mod/plugin/oidc", plugin);
        self.admin("PUT", "mod/plugin/oidc/reset", &json!({}));
    }

    #[track_caller]
    fn token(&self, client: &str) -> String {
        self.shell(&format!("./token {client} ada lovelace")).ok().trim().to_owned()
    }

    /// Writes the API server's configuration and returns the document for `up`.
    fn document(&self) -> PathBuf {
        let authority = fs::read_to_string(self.directory.join("tls.crt")).unwrap();
        let authentication = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": ISSUER, "audiences": ["kubernetes"], "certificateAuthority": authority},
                "claimMappings": {
                    "username": {"claim": "email", "prefix": "oidc:"},
                    "groups": {"claim": "groups", "prefix": "oidc:"},
                },
            }],
        });
        let file = self.directory.join("authentication.json");
        fs::write(&file, authentication.to_string()).unwrap();
        let document = json!({
            "apiVersion": "windlass.io/v1alpha1",
            "kind": "Cluster",
            "apiServer": {"extraArgs": [{"name": "authentication-config", "value": file}]},
        });
        let file = self.directory.join("cluster.json");
        fs::write(&file, document.to_string()).unwrap();
        file
    }
}

#[track_caller]
fn is_refused(output: Output) {
    let error = output.refused();
    assert!(error.contains("must be logged in") || error.contains("Unauthorized"), "{error}");
}

/// Waits until the API server answers a request with a token as `wanted` says.
fn until_token(s: &Session<'_>, what: &str, token: &str, accepted: bool) {
    until(what, || {
        let output = s.with_token(token, "auth whoami");
        let unauthorized =
            output.stderr.contains("must be logged in") || output.stderr.contains("Unauthorized");
        match output.code {
            Some(0) if accepted => Ok(()),
            Some(code) if code != 0 && unauthorized && !accepted => Ok(()),
            _ => Err(output.to_string()),
        }
    });
}

fn logs_in_by_credential_plugin(s: &Session<'_>, provider: &Provider<'_>) {
    let plugin = provider.directory.join("plugin").display().to_string();
    for (user, password) in [("ada", "lovelace"), ("mallory", "guess")] {
        s.kubectl(&format!(
            "config set-credentials {user} --exec-api-version=client.authentication.k8s.io/v1 --exec-command={plugin} \
             --exec-arg=kubernetes --exec-arg=ada --exec-arg={password} --exec-interactive-mode=Never"
        ))
        .ok();
    }
    let who = s.kubectl("auth whoami --user=ada -o json").ok();
    let who: Value = serde_json::from_str(&who).unwrap();
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "oidc:ada@example.com");
    let groups = json!(["oidc:g_profile", "oidc:openid", "system:authenticated"]);
    assert_eq!(user["groups"], groups, "{who}");
    let denied = s.kubectl("get pods --user=ada").refused();
    assert!(denied.contains("User \"oidc:ada@example.com\" cannot list"), "{denied}");
    s.kubectl("create clusterrolebinding oidc --clusterrole=view --group=oidc:openid").ok();
    s.until("get pods --user=ada", |_| true);
    s.kubectl("get secrets --user=ada").refused();
    let failed = s.kubectl("get pods --user=mallory").refused();
    assert!(failed.contains("plugin") && failed.contains("exit code 1"), "{failed}");
}

#[test]
fn users_of_openid_provider_log_in() {
    let _turn = share_machine();
    let cluster = Cluster::new("oidc");
    let mut provider = Provider::create(&cluster);
    cluster.up_with(&["--config", &provider.document().display().to_string()]).ok();
    let s = Session::in_default_namespace(&cluster);
    logs_in_by_credential_plugin(&s, &provider);

    let first = provider.token("kubernetes");
    s.with_token(&first, "auth whoami").ok();
    let other = provider.token("other");
    is_refused(s.with_token(&other, "auth whoami"));
    let (signed, _) = first.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    is_refused(s.with_token(&format!("{signed}.{signature}"), "auth whoami"));

    let mut plugin = provider.plugin();
    provider.set_plugin(&plugin);
    let last = provider.token("kubernetes");
    until_token(&s, "a token of the new key", &last, true);
    is_refused(s.with_token(&first, "auth whoami"));
    // The key is known, so that this token is refused for its age alone.
    plugin["parameters"]["access-token-duration"] = json!(1);
    provider.set_plugin(&plugin);
    until_token(&s, "the end of a short token", &provider.token("kubernetes"), false);
    s.with_token(&last, "auth whoami").ok();

    provider.stop();
    s.with_token(&last, "auth whoami").ok();
    cluster.kill("control-plane");
    until_token(&s, "an API server without keys", &last, false);
    s.kubectl("get nodes").ok();
    provider.start();
    until_token(&s, "the keys of the provider", &last, true);
    cluster.down(&[]).ok();
}

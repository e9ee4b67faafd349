//! Tests of Terraform configurations against upstream's goldens.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{
    Image, MachineType, Machines, NodeInputs, World, complete, complete_group,
    direct::{Phase, Selection},
    model::aws::{AwsInputs, aws},
    render::terraform::{self, Files, Settings},
};
use serde_json::Value;

use crate::{
    completed::objects,
    golden::{difference, read, source},
    mock::{assert_missed, cases, stored, world},
    node::Golden,
};

/// Configurations that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];
/// Data files that differ, with the reason.
const DATA_MISSED: &[(&str, &str)] = &[
    (
        "minimal-warmpool/aws_s3_object_nodeupconfig-nodes_content",
        "images that machines of a warm pool fetch are those of add-ons, which are not made yet",
    ),
    (
        "karpenter/aws_sqs_queue_minimal-example-com-nth_policy",
        "is left over: no queue is in its kubernetes.tf",
    ),
    (
        "many-addons/aws_sqs_queue_minimal-example-com-nth_policy",
        "is left over: no queue is in its kubernetes.tf",
    ),
];
/// Lines that differ on purpose: case, upstream's, ours. Upstream's Terraform deletes every disk with its machine,
/// whatever the spec says.
const OTHERWISE: &[(&str, &str, &str)] = &[(
    "complex",
    "delete_on_termination = true\n      encrypted             = true\n      kms_key_id",
    "delete_on_termination = false\n      encrypted             = true\n      kms_key_id",
)];

/// The bucket that replaces a store in memory in upstream's tests.
const BUCKET: &str = "testingBucket";

/// Returns the contents of upstream's mock of AWS.
fn cloud() -> World {
    let mut world = world(false);
    let image = Image { id: "ami-12345678".to_owned(), root_device: "/dev/xvda".to_owned() };
    let name = "ubuntu/images/hvm-ssd-gp3/ubuntu-resolute-26.04-amd64-server-20220404";
    world.images = [(name.to_owned(), image.clone()), (image.id.clone(), image)].into();
    let machine = |disks, gpu| MachineType { architecture: "amd64".to_owned(), gpu, disks };
    for zone in &mut world.zones {
        // The third zone belongs to the existing network.
        zone.networks.extend((zone.id == "Z3AFAKE1ZOMORE").then(|| "vpc-12345678".to_owned()));
    }
    world.machine_types =
        [("m3.medium".to_owned(), machine(1, false)), ("g4dn.xlarge".to_owned(), machine(0, true))]
            .into();
    "123456789012".clone_into(&mut world.account);
    "aws-test".clone_into(&mut world.partition);
    world
}

/// Returns the object with its store in a bucket.
fn in_bucket(object: &Object) -> Object {
    let text = object.spec.to_string().replace("memfs://", &format!("s3://{BUCKET}/"));
    let spec = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}"));
    Object { spec, ..object.clone() }
}

/// Returns the add-ons from a case's goldens, by the channel that lists them.
fn addons(case: &Path, cluster: &str) -> BTreeMap<String, String> {
    let files: BTreeMap<String, String> = stored(case).into_iter().collect();
    let find = |name: String| files.get(&format!("aws_s3_object_{name}_content")).cloned();
    let channel = find(format!("{cluster}-addons-bootstrap")).unwrap_or_default();
    let listed = api_codec::from_yaml(channel.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let mut addons = BTreeMap::new();
    for addon in listed.items("spec.addons") {
        let (name, id) = (addon.text("name"), addon.text("id"));
        let known = [format!("{cluster}-addons-{name}-{id}"), format!("{cluster}-addons-{name}")];
        // Some manifests are empty, and upstream stores no goldens for them.
        let content = known.into_iter().find_map(find).unwrap_or_default();
        addons.insert(addon.text("manifest").to_owned(), content);
    }
    addons.insert("bootstrap-channel.yaml".to_owned(), channel);
    addons
}

/// A case's completed objects, and the inputs of their model.
pub(crate) struct Prepared {
    pub(crate) cluster: Object,
    pub(crate) groups: Vec<Object>,
    pub(crate) node: NodeInputs,
    pub(crate) world: World,
    pub(crate) ssh_keys: Vec<String>,
    pub(crate) addons: BTreeMap<String, String>,
    pub(crate) settings: Settings,
}

/// Completes a case's objects, with their store in a bucket.
pub(crate) fn prepared(
    golden: &Golden,
    name: &str,
    case: &Path,
    mut world: World,
) -> Result<Prepared, String> {
    let text = read(&case.join("in-v1alpha2.yaml"));
    let mut all = objects(name, &text).map_err(|e| e.to_string())?;
    let at = all.iter().position(|o| o.kind == Kind::Cluster).ok_or("no cluster")?;
    let cluster = all.remove(at);
    world.api_server_nodes = all.iter().any(|o| o.spec.text("role") == "APIServer");
    let complete = complete(&cluster, &all, &world, &Machines::default());
    let cluster = complete.map_err(|e| e.to_string())?;
    let groups = all.iter().filter(|o| o.kind == Kind::InstanceGroup);
    let groups = groups.map(|group| complete_group(&cluster, group, &golden.channel, &world));
    let groups = groups.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let mut node = golden.inputs(&cluster, &text);
    for arch in ["amd64", "arm64"] {
        let url =
            format!("https://artifacts.k8s.io/binaries/kops/{}/linux/{arch}/nodeup", node.kops);
        node.hashes.insert(url, "0".repeat(64));
    }
    let settings = Settings {
        cluster: cluster.name().to_owned(),
        provider: strings(cluster.spec.opt_at("target.terraform.providerExtraConfig")),
        files_provider: strings(cluster.spec.opt_at("target.terraform.filesProviderExtraConfig")),
        files_region: "us-test-1".to_owned(),
    };
    Ok(Prepared {
        ssh_keys: std::fs::read_to_string(case.join("id_rsa.pub")).into_iter().collect(),
        addons: addons(case, cluster.name()),
        cluster: in_bucket(&cluster),
        groups,
        node,
        world,
        settings,
    })
}

fn written(
    golden: &Golden,
    name: &str,
    case: &Path,
    selection: &Selection,
) -> Result<Files, String> {
    let Prepared { cluster, groups, node, world, ssh_keys, addons, settings } =
        prepared(golden, name, case, cloud())?;
    let inputs = AwsInputs {
        node,
        world,
        ssh_keys,
        addons,
        key_set: stored(case)
            .into_iter()
            .find_map(|(name, text)| (name == "aws_s3_object_keys.json_content").then_some(text))
            .unwrap_or_default(),
    };
    let model = aws(&cluster, &groups, &inputs).map_err(|e| e.to_string())?;
    terraform::aws(&model, &settings, selection).map_err(|e| e.to_string())
}

fn strings(map: Option<&Value>) -> BTreeMap<String, String> {
    let members = map.and_then(Value::as_object).into_iter().flatten();
    members
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// A case with our output for it.
pub(crate) type Case = (String, PathBuf, Result<Files, String>);

/// Returns our output for each of upstream's AWS cases, computed once.
fn all(source: &Path) -> &'static [Case] {
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    ALL.get_or_init(|| {
        let golden = Golden::read(source);
        let in_aws = |case: &Path| {
            let text = read(&case.join("kubernetes.tf"));
            text.contains("resource \"aws_autoscaling_group\"")
        };
        let cases = cases(source).into_iter().filter(|(_, case)| in_aws(case));
        let write = |(name, case): (String, PathBuf)| {
            let files = written(&golden.with_fetched(&case), &name, &case, &Selection::default());
            (name, case, files)
        };
        cases.map(write).collect()
    })
}

/// Compares the main files of cases with upstream's.
pub(crate) fn compare_main(family: &str, cases: &[Case], known: &[(&str, &str)]) {
    let mut missed = Vec::new();
    for (name, case, files) in cases {
        let mut theirs = read(&case.join("kubernetes.tf"));
        for (_, upstreams, ours) in OTHERWISE.iter().filter(|(of, ..)| of == name) {
            assert!(theirs.contains(upstreams), "{name}: upstream has changed {upstreams}");
            theirs = theirs.replace(upstreams, ours);
        }
        let why = match files {
            Ok(files) => {
                let ours = String::from_utf8_lossy(&files["kubernetes.tf"]).into_owned();
                difference(&ours, &theirs)
            }
            Err(error) => Some(error.clone()),
        };
        missed.extend(why.map(|why| (name.clone(), why)));
    }
    assert_missed(family, cases.len(), &missed, known);
}

#[test]
fn terraform_matches_upstream() {
    let Some(source) = source() else { return };
    compare_main("kubernetes.tf of AWS", all(&source), MISSED);
}

#[test]
fn network_phase_matches_upstream() {
    let Some(source) = source() else { return };
    let case = source.join("tests/integration/update_cluster/lifecycle_phases");
    let golden = Golden::read(&source).with_fetched(&case);
    let selection = Selection { phase: Some(Phase::Network), ..Selection::default() };
    let files = written(&golden, "lifecycle_phases", &case, &selection);
    let files = files.unwrap_or_else(|e| panic!("{e}"));
    let ours = String::from_utf8_lossy(&files["kubernetes.tf"]).into_owned();
    let why = difference(&ours, &read(&case.join("network-kubernetes.tf")));
    let missed: Vec<_> = why.into_iter().map(|why| ("network".to_owned(), why)).collect();
    assert_missed("kubernetes.tf of AWS' network phase", 1, &missed, &[]);
    assert_eq!(files.len(), 1, "{:?}", files.keys());
}

/// Returns a policy with our bucket names, each statement once.
fn policy(text: &str) -> Value {
    let ours = ["placeholder-read-bucket", "placeholder-write-bucket"];
    let text = ours.iter().fold(text.to_owned(), |text, theirs| text.replace(theirs, BUCKET));
    let mut policy: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    if let Some(statements) = policy["Statement"].as_array_mut() {
        statements.dedup();
    }
    policy
}

/// Returns the lines of user data without the hashes that depend on the store's name.
fn relevant_lines(text: &str) -> Vec<String> {
    let sums = ["NODEUP_HASH", "NodeupConfigHash:"];
    let known = |line: &&str| ["NODEUP_URL", "export "].iter().any(|start| line.starts_with(start));
    let mut lines: Vec<&str> = text.lines().filter(known).collect();
    let document = text.split_once("cat > conf/kube_env.yaml << '__EOF_KUBE_ENV'\n");
    let document = document.and_then(|(_, rest)| rest.split_once("\n__EOF_KUBE_ENV"));
    lines.extend(document.map_or("", |(document, _)| document).lines());
    if let Some((_, parts)) = text.split_once("\n\n--MIMEBOUNDARY\n") {
        lines.extend(parts.rsplit("--MIMEBOUNDARY\n").next().unwrap_or_default().lines());
    }
    let lines = lines.into_iter().filter(|line| !sums.iter().any(|sum| line.starts_with(sum)));
    lines.map(str::to_owned).collect()
}

fn differs(file: &str, ours: &str, theirs: &str) -> Option<String> {
    // Goldens have no carriage returns, and upstream trims white space at both ends.
    let ours = ours.replace(&format!("s3://{BUCKET}/"), "memfs://").replace('\r', "");
    let (ours, theirs) = (ours.trim(), theirs.trim());
    if file.starts_with("aws_iam_role_policy_") {
        let (ours, theirs) = (policy(ours), policy(theirs));
        let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
        return difference(&pretty(&ours), &pretty(&theirs));
    }
    let scripts = ["_user_data", "_metadata_user-data", "_metadata_startup-script"];
    let is_script = scripts.iter().any(|end| file.ends_with(end));
    if is_script || file.contains("_nodeupscript-") {
        return difference(&relevant_lines(ours).join("\n"), &relevant_lines(theirs).join("\n"));
    }
    difference(ours, theirs)
}

/// Compares the data files of cases with upstream's.
pub(crate) fn compare_data(family: &str, cases: &[Case], known: &[(&str, &str)]) {
    let (mut missed, mut count) = (Vec::new(), 0);
    for (name, case, files) in cases {
        let files = files.as_ref().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut ours: BTreeMap<&str, String> = BTreeMap::new();
        for (path, content) in files {
            if let Some(file) = path.strip_prefix("data/") {
                ours.insert(file, String::from_utf8_lossy(content).into_owned());
            }
        }
        for (file, theirs) in stored(case) {
            let ours = ours.remove(file.as_str());
            // Content that the test brought itself proves nothing.
            if ours.is_some() && (file.contains("-addons-") || file.contains("keys.json")) {
                continue;
            }
            count += 1;
            let why = match ours {
                Some(ours) => differs(&file, &ours, &theirs),
                None => Some("is not written".to_owned()),
            };
            missed.extend(why.map(|why| (format!("{name}/{file}"), why)));
        }
        // Goldens have no empty files.
        let more = ours.into_iter().filter(|(_, content)| !content.is_empty());
        missed.extend(
            more.map(|(file, _)| (format!("{name}/{file}"), "is upstream's not".to_owned())),
        );
    }
    assert_missed(family, count, &missed, known);
}

#[test]
fn terraform_data_files_match_upstream() {
    let Some(source) = source() else { return };
    compare_data("data of AWS", all(&source), DATA_MISSED);
}

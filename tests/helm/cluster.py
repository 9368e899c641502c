#!/usr/bin/env python3
"""Installs the Helm chart in the API server of KUBECONFIG, a cluster for tests without nodes, and runs its pods on this machine.

The script does what nodes and controllers do: it creates the pods of the Deployments, gives each an address on the loopback interface,
mounts their volumes, and runs their containers as their user, in a root filesystem that can't be written. Companions and init containers
run from the image of deploy/images/build; Envoy is the one of this machine.

Needs root, buildah, kubectl, helm (or HELM), curl, and the images. Usage: tests/helm/cluster.py ENVOY
"""

import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request

NAMESPACE = "penstock-chart-test"
RELEASE = "penstock"
CHART = "deploy/helm/penstock"
HELM = os.environ.get("HELM", "helm")
# For benchmarks of networks (RFC 2544), so that no real machine has them.
ADDRESSES = "198.18.0."
SERVERS = [ADDRESSES + "31", ADDRESSES + "32"]
USER = 65532
WAIT = 60


def run(*command, **options):
    """The output of a command, which must succeed."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


def kubectl(*arguments, **options):
    return run("kubectl", "--namespace", NAMESPACE, *arguments, **options)


def objects(kind, *names):
    """Objects of the API server: one by its name, or all."""
    read = json.loads(kubectl("get", kind, *names, "--output", "json"))
    return read if names else read["items"]


def apply(document, *flags):
    kubectl("apply", "--server-side", "--validate=strict", "--filename", "-", *flags, input=json.dumps(document))


def until(what, condition):
    """Waits until a condition returns something."""
    ends = time.monotonic() + WAIT
    while time.monotonic() < ends:
        found = condition()
        if found:
            print(f"{what}: {found}" if found is not True else what, flush=True)
            return found
        time.sleep(0.05)
    for pod in PODS:
        pod.print_log()
    raise SystemExit(f"not within {WAIT} s: {what}")


def get(url, data=None):
    """Status, headers and body of a page; None: no connection."""
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"} if data else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=WAIT) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()
    except OSError:
        return None


PODS = []


class Pod:
    """A pod of a Deployment's template, in the API server and on this machine."""

    def __init__(self, deployment, name, address, work, envoy):
        self.name, self.address, self.envoy = name, address, envoy
        self.folder = work / name
        self.folder.mkdir()
        self.containers = {}
        template = deployment["spec"]["template"]
        metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        # Checked by the namespace's level `restricted`.
        apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        kubectl("patch", "pod", name, "--subresource", "status", "--type", "merge", "--patch", json.dumps({"status": status}))
        # With the defaults of the API server.
        self.spec = objects("pod", name)["spec"]
        self.volumes = {volume["name"]: self.volume(volume) for volume in self.spec["volumes"]}
        self.hosts = self.folder / "hosts"
        PODS.append(self)

    def __repr__(self):
        return self.name

    def volume(self, volume):
        """A folder with a volume's files."""
        folder = self.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        files = {}
        if "configMap" in volume:
            files = objects("configmap", volume["configMap"]["name"])["data"]
        elif "secret" in volume:
            data = objects("secret", volume["secret"]["secretName"])["data"]
            files = {name: base64.b64decode(value).decode() for name, value in data.items()}
        elif "projected" in volume:
            files = self.token(self.spec["serviceAccountName"])
        for name, text in files.items():
            file = folder / name
            file.write_text(text)
            os.chown(file, 0, USER)
            file.chmod(0o440)
        if "emptyDir" in volume:
            os.chown(folder, 0, USER)
            folder.chmod(0o770)
        return folder

    @staticmethod
    def token(account):
        """The files of a service account, as a node mounts them."""
        config = json.loads(run("kubectl", "config", "view", "--raw", "--minify", "--flatten", "--output", "json"))
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
        return {
            "token": kubectl("create", "token", account).strip(),
            "ca.crt": base64.b64decode(authority).decode(),
            "namespace": NAMESPACE,
        }

    def environment(self, container):
        fields = {"status.podIP": self.address, "metadata.name": self.name}
        server = json.loads(run("kubectl", "config", "view", "--minify", "--output", "json"))["clusters"][0]["cluster"]["server"]
        host, port = re.match(r"https://([^:/]+):(\d+)", server).groups()
        variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        for entry in container.get("env", []):
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[entry["name"]] = fields[field] if field else expand(entry.get("value", ""), variables)
        return variables

    def root(self, container):
        """A root filesystem of its own, with mount points, and the lines of a script that makes the mounts."""
        root = self.folder / "roots" / container["name"]
        lines = []
        if container["name"] == "envoy":
            for path in ["usr", "proc", "dev"]:
                (root / path).mkdir(parents=True)
                lines.append(f"mount --rbind -o ro /{path} {root}/{path}")
            for link in ["bin", "lib", "lib64"]:
                (root / link).symlink_to(f"usr/{link}")
            (root / "opt").mkdir()
            shutil.copy(self.envoy, root / "opt" / "envoy")
        else:
            shutil.copytree(IMAGE, root)
        (root / "etc").mkdir(exist_ok=True)
        shutil.copy(self.hosts, root / "etc" / "hosts")
        mounts = []
        for mount in container.get("volumeMounts", []):
            mounts.append((self.volumes[mount["name"]], mount["mountPath"], mount.get("readOnly", False)))
        if self.spec.get("automountServiceAccountToken"):
            token = self.folder / "token"
            token.mkdir(exist_ok=True)
            for name, text in self.token(self.spec["serviceAccountName"]).items():
                (token / name).write_text(text)
            mounts.append((token, "/var/run/secrets/kubernetes.io/serviceaccount", True))
        for _, path, _ in mounts:
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        lines += [f"mount --bind {root} {root}", f"mount -o remount,bind,ro {root}"]
        if container["name"] == "envoy":
            # The bind of the root hides the mounts below it.
            lines = lines[-2:] + lines[:-2]
        for source, path, read_only in mounts:
            lines.append(f"mount --bind {source} {root}{path}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {root}{path}")
        return root, lines

    def start(self, container):
        """Starts a container."""
        command = container.get("command", ["/usr/bin/penstock"]) + container.get("args", [])
        variables = self.environment(container)
        command = [expand(part, variables) for part in command]
        if command[0] == "envoy":
            command[0] = "/opt/envoy"
        root, lines = self.root(container)
        script = "\n".join(["set -e", *lines, f'exec {shutil.which("chroot")} --userspec={USER}:{USER} {root} "$@"'])
        log = open(self.folder / f"{container['name']}.log", "a", encoding="utf-8")
        started = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "container", *command],
            env=variables, stdout=log, stderr=log, start_new_session=True,
        )
        self.containers[container["name"]] = started
        return started

    def run(self):
        """Starts the containers in the order of a node."""
        self.hosts.write_text(hosts())
        for container in self.spec.get("initContainers", []):
            started = self.start(container)
            if container.get("restartPolicy") == "Always":
                path = container["startupProbe"]["httpGet"]["path"]
                port = next(port["containerPort"] for port in container["ports"])
                until(f"{self.name}: {container['name']} has started", lambda: get(f"http://127.0.0.1:{port}{path}") is not None)
            elif started.wait(WAIT) != 0:
                self.print_log()
                raise SystemExit(f"{self.name}: {container['name']} failed")
        for container in self.spec["containers"]:
            self.start(container)

    def stop_hook(self, name):
        """Starts the hook that runs before a container ends."""
        container = next(container for container in self.spec["containers"] if container["name"] == name)
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        # In the mounts and the root of the container's process.
        entered = ["nsenter", f"--target={self.containers[name].pid}", "--mount", "--root", f"--setuid={USER}", f"--setgid={USER}"]
        return subprocess.Popen([*entered, *command], cwd="/")

    def kill(self):
        for started in self.containers.values():
            if started.poll() is None:
                started.send_signal(signal.SIGKILL)
                started.wait()

    def print_log(self):
        for name in self.containers:
            text = (self.folder / f"{name}.log").read_text(encoding="utf-8")
            print(f"--- {self.name} {name}\n{text[-4000:]}", file=sys.stderr)


def expand(text, variables):
    """Text with $(NAME) replaced, as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)


def hosts():
    """The names of headless Services, which a cluster's DNS would resolve."""
    lines = ["127.0.0.1 localhost"]
    for service in objects("service"):
        for pod in PODS:
            labels = objects("pod", pod.name)["metadata"]["labels"]
            selector = service["spec"].get("selector")
            if service["spec"].get("clusterIP") == "None" and selector and selector.items() <= labels.items():
                lines.append(f"{pod.address} {service['metadata']['name']}.{NAMESPACE}.svc")
    return "\n".join(lines) + "\n"


def helm(verb, *arguments):
    """Runs Helm, which must not warn."""
    done = subprocess.run([HELM, verb, *arguments, "--namespace", NAMESPACE], text=True, capture_output=True, check=False)
    warnings = [line for line in done.stderr.splitlines() if "warn" in line.lower()]
    if done.returncode != 0 or warnings:
        raise SystemExit(f"helm {verb}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def values(weight):
    """Values with listeners on the address of each pod, because all pods share this machine."""
    listen = [
        {"name": f"PENSTOCK_LISTEN__{key}", "value": f"$(POD_IP):{port}"}
        for key, port in [("GRPC", 9190), ("HTTP", 9191), ("GATEWAY", 8080)]
    ]
    pool = {
        "name": "chat",
        "endpoints": {"kubernetes": {"service": "model-servers"}},
        "arbitration": {"flows": {"weights": {"acme": weight}}},
    }
    return {
        "config": {"identity": {"trust": "all"}, "pools": [pool]},
        "companion": {"extraEnv": listen},
        "envoy": {"replicas": 1, "drainSeconds": 30},
    }


# What operators choose, beside the installation that runs.
VARIANTS = {
    "defaults": {},
    "one companion": {"companion": {"replicas": 1}},
    "for Envoy Gateway": {"mode": "envoy-gateway", "companion": {"adminToken": {"secretName": "token"}}},
    "an InferencePool of another namespace": {
        "config": {"pools": [{"name": "chat", "endpoints": {"kubernetes": {"inference_pool": "llama", "namespace": "default"}}}]},
    },
    "a configuration as text": {"config": "identity: {trust: all}\npools: [{name: chat, endpoints: {dns: {name: vllm, port: 8000}}}]\n"},
    "monitoring and autoscaling": {
        "monitoring": {name: {"enabled": True} for name in ("podMonitor", "prometheusRule", "dashboard")},
        "envoy": {"autoscaling": {"enabled": True}, "tls": {"secretName": "gateway"}},
    },
    "a load balancer, filters and labels": {
        "commonLabels": {"team": "inference"},
        "envoy": {
            "service": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "loadBalancerClass": "example.com/internal",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            },
            "httpFilters": [{"name": "envoy.filters.http.jwt_authn"}],
            "extraVolumes": [{"name": "keys", "configMap": {"name": "keys"}}],
            "extraVolumeMounts": [{"name": "keys", "mountPath": "/etc/keys", "readOnly": True}],
        },
    },
}
# The definitions of PodMonitor and PrometheusRule.
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"


def check_variants(work):
    """Has the API server check each variant strictly, with its admission, which must not warn."""
    folder = json.loads(run("go", "mod", "download", "-json", OPERATOR, cwd=work))["Dir"]
    for name in ["podmonitors", "prometheusrules"]:
        definition = f"{folder}/example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"
        run("kubectl", "apply", "--server-side", "--filename", definition)
    run("kubectl", "wait", "--for", "condition=Established", "--timeout", "60s", "crd", "--all")
    for name, variant in VARIANTS.items():
        file = work / "variant.json"
        file.write_text(json.dumps(variant))
        objects_of_variant = helm("template", RELEASE, CHART, "--values", str(file))
        applied = subprocess.run(
            ["kubectl", "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-"],
            input=objects_of_variant, text=True, capture_output=True, check=False,
        )
        if applied.returncode != 0 or "Warning" in applied.stderr:
            raise SystemExit(f"{name}: {applied.stderr}")
        print(f"{name}: {len(applied.stdout.splitlines())} objects, no warning", flush=True)


# The kinds of Envoy Gateway and of the Gateway API.
ENVOY_GATEWAY = "github.com/envoyproxy/gateway@v1.9.1"
GATEWAY_CONFIG = """
pools:
- name: chat
  models: [m]
  endpoints: {static: ["10.0.0.1:8000"]}
- name: found
  endpoints: {kubernetes: {inference_pool: llama}}
"""


def check_gateway_resources(work):
    """Has the API server check the resources for Envoy Gateway, and the EnvoyProxy of the page about them."""
    folder = json.loads(run("go", "mod", "download", "-json", ENVOY_GATEWAY, cwd=work))["Dir"]
    run("kubectl", "apply", "--server-side", "--recursive", "--filename", f"{folder}/charts/gateway-helm/charts/crds/crds")
    run("kubectl", "wait", "--for", "condition=Established", "--timeout", "60s", "crd", "--all")
    config = work / "penstock.yaml"
    config.write_text(GATEWAY_CONFIG)
    print_resources = [
        f"{IMAGE}/usr/bin/penstock", "gateway-resources", "--config", str(config), "--gateway", "default/eg", "--service", "found=vllm:8000",
        "--companion", "penstock.default:9190", "--module", "http://penstock.default:9191/penstock.wasm",
    ]
    page = pathlib.Path("docs/gateways.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    proxies = [block.replace("namespace: models", "namespace: default") for block in blocks if "kind: EnvoyProxy" in block]
    if len(proxies) != 1:
        raise SystemExit(f"docs/gateways.md has {len(proxies)} EnvoyProxy objects")
    for name, text in [
        ("resources for Envoy Gateway", run(*print_resources)),
        ("the same with requeue", run(*print_resources, "--requeue")),
        ("the EnvoyProxy of docs/gateways.md", proxies[0]),
    ]:
        applied = run("kubectl", "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-", input=text)
        print(f"{name}: {len(applied.splitlines())} objects", flush=True)


def model_servers(ready):
    """A Service with these addresses."""
    port = {"name": "http", "port": 8000, "protocol": "TCP"}
    apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "model-servers"}, "spec": {"clusterIP": "None", "ports": [port]}})
    apply({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "model-servers", "labels": {"kubernetes.io/service-name": "model-servers"}},
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in ready],
    })


def chat(gateway, stream=False):
    body = {"model": "m", "max_tokens": 8, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
    return get(f"http://{gateway}:8080/v1/chat/completions", json.dumps(body).encode())


def served_by(gateway):
    """The server of an answered request."""
    answer = chat(gateway)
    if answer and answer[0] == 200 and answer[1]["x-penstock-outcome"]:
        return answer[1]["x-gateway-destination-endpoint-served"]
    return None


def leader(companions):
    """The companion that leads, if all that run are ready."""
    answers = {pod: get(f"http://{pod.address}:9191/readyz") for pod in companions}
    if any(answer is None or answer[0] != 200 for answer in answers.values()):
        return None
    leaders = [pod for pod, answer in answers.items() if json.loads(answer[2])["role"] == "leader"]
    return leaders[0] if len(leaders) == 1 else None


def scenario(work, envoy_binary):
    """The life of an installation."""
    model_servers(SERVERS[:1])
    file = work / "values.json"
    file.write_text(json.dumps(values(1)))
    helm("install", RELEASE, CHART, "--values", str(file))
    print("installed", flush=True)
    secret = objects("secret", "penstock-tls")["data"]
    deployments = {deployment["metadata"]["name"]: deployment for deployment in objects("deployment")}
    companions = [
        Pod(deployments["penstock-companions"], f"companion-{number}", f"{ADDRESSES}{10 + number}", work, envoy_binary)
        for number in (1, 2)
    ]
    gateway = Pod(deployments["penstock-envoy"], "envoy-1", f"{ADDRESSES}21", work, envoy_binary)
    for pod in [*companions, gateway]:
        pod.run()
    first = until("a companion leads", lambda: leader(companions))
    until("a request is served", lambda: served_by(gateway.address))

    model_servers(SERVERS)
    until("the second server serves", lambda: served_by(gateway.address) == f"{SERVERS[1]}:8000")
    first.kill()
    rest = [pod for pod in companions if pod is not first]
    print(f"killed {first.name}", flush=True)
    if not served_by(gateway.address):
        raise SystemExit("the request during the change of the leader was lost")
    print("a request during the change of the leader was served", flush=True)
    until("the standby leads", lambda: leader(rest))

    changed = work / "changed.json"
    changed.write_text(json.dumps(values(3)))
    helm("upgrade", RELEASE, CHART, "--values", str(changed))
    if objects("secret", "penstock-tls")["data"] != secret:
        raise SystemExit("the upgrade changed the certificate")
    annotations = {
        name: objects("deployment", name)["spec"]["template"]["metadata"]["annotations"] for name in deployments
    }
    before = {name: deployment["spec"]["template"]["metadata"]["annotations"] for name, deployment in deployments.items()}
    if annotations["penstock-companions"] == before["penstock-companions"]:
        raise SystemExit("a changed configuration doesn't restart the companions")
    if annotations["penstock-envoy"] != before["penstock-envoy"]:
        raise SystemExit("a changed weight restarts Envoy")
    print("upgraded: the certificate stays, companions are replaced, Envoys aren't", flush=True)

    slow = subprocess.Popen([
        "curl", "--silent", "--no-buffer", f"http://{gateway.address}:8080/v1/chat/completions", "--header", "content-type: application/json",
        "--data", json.dumps({"model": "m", "max_tokens": 800, "stream": True, "messages": [{"role": "user", "content": "long"}]}),
    ], stdout=open(work / "stream", "wb"))
    until("a stream runs", lambda: (work / "stream").stat().st_size > 0)
    hook = gateway.stop_hook("envoy")
    if hook.wait(WAIT) != 0:
        raise SystemExit(f"preStop: exit code {hook.returncode}")
    if slow.poll() is None or b"[DONE]" not in (work / "stream").read_bytes():
        raise SystemExit("preStop returned while a stream was running")
    print("preStop returned after the stream had ended", flush=True)
    helm("uninstall", RELEASE)
    left = [f"{kind}/{found['metadata']['name']}" for kind in ["deployment", "role", "secret"] for found in objects(kind)]
    if left:
        raise SystemExit(f"left after the removal: {left}")
    print("removed", flush=True)


def main():
    global IMAGE
    envoy_binary = sys.argv[1]
    os.environ["KUBECONFIG"]
    work = pathlib.Path(tempfile.mkdtemp())
    work.chmod(0o755)
    container = run("buildah", "from", "--pull-never", "localhost/penstock:" + version()).strip()
    servers = []
    addresses = [f"{ADDRESSES}{last}/32" for last in (11, 12, 21, 31, 32)]
    try:
        IMAGE = run("buildah", "mount", container).strip()
        for address in addresses:
            run("ip", "address", "replace", address, "dev", "lo")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {
            f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")
        }}}
        run("kubectl", "apply", "--server-side", "--filename", "-", input=json.dumps(namespace))
        check_variants(work)
        check_gateway_resources(work)
        for address in SERVERS:
            servers.append(subprocess.Popen(
                [f"{IMAGE}/usr/bin/penstock", "--log", "warn", "mock-server", "--host", address, "--port", "8000"],
                stdout=subprocess.DEVNULL,
            ))
        scenario(work, envoy_binary)
    finally:
        for pod in PODS:
            pod.kill()
        for server in servers:
            server.kill()
        for address in addresses:
            subprocess.run(["ip", "address", "delete", address, "dev", "lo"], check=False)
        subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(["buildah", "rm", container], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)


def version():
    text = pathlib.Path("Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^\[workspace\.package\]\nversion = "(.*)"', text, re.M)[1]


IMAGE = ""
os.chdir(pathlib.Path(__file__).resolve().parents[2])
main()

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestREADME does what README.md has a new user do, line by line, in a namespace and a /run of its own.
func TestREADME(t *testing.T) {
	testenv.NeedServers(t, "bash", "python3", "curl", "hostname", "unshare")
	h := newHosts(t)
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, part, ok := strings.Cut(string(text), "## Two local web servers")
	require.True(t, ok)
	part, _, ok = strings.Cut(part, "## What next")
	require.True(t, ok)
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(part, -1) {
		script.WriteString(block[1])
	}
	bin, err := built()
	require.NoError(t, err)
	commands := script.String()
	const build = "go build -o l4lb ./examples/l4lb\n"
	require.Contains(t, commands, build)
	require.Contains(t, part, "kill %3")
	commands = strings.Replace(commands, build, "cp "+bin+" l4lb\n", 1) // the same command has made it
	// It waits for conditions where a person looks.
	commands = strings.Replace(commands, "sleep 5\n", "for i in $(seq 300); do [[ $(./l4lb status 2>&1) =~ 2/2 ]] && break; sleep 0.1; done\n", 1)
	file := filepath.Join(t.TempDir(), "readme.sh")
	require.NoError(t, os.WriteFile(file, []byte("set -em\nmount -t tmpfs none /run\ncd "+t.TempDir()+"\n"+commands+"echo ended by: kill %3\nkill %3\nwait %3\nip link show lb0 2>&1 || true\nkill %1 %2\n"), 0o600))
	log := &rig.Log{}
	p := rig.Start(t, h.balancer, log, "unshare", "-m", "bash", file)
	t.Cleanup(p.End)
	select {
	case <-p.Done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "it does not end", "%v", log)
	}
	out := log.String()
	require.NoError(t, p.Err, out)
	require.Contains(t, out, "l4lb.yaml: right: 1 services, 1 farms, 2 nodes")
	require.Equal(t, 4, strings.Count(strings.Split(out, "SERVICE")[0], "hello from web1"), out)
	require.Equal(t, 2, strings.Count(strings.Split(out, "SERVICE")[0], "hello from web2"), out)
	require.Regexp(t, `web/web1: draining[^\n]*\n(.*\n)*?hello from web2\n`, out)
	require.Contains(t, out, "web/web1: available")
	require.Regexp(t, `lb0.*does not exist`, out)
}

// image builds the container file's image with buildah, in a store of its own, and returns its root and its configuration. The base of the first
// stage is in a registry, so its commands are run here; the second begins from nothing, and is built as it stands.
func image(t *testing.T) (root string, config imageConfig) {
	t.Helper()
	bin := testenv.NeedServers(t, "buildah")[0]
	file, err := os.ReadFile("deploy/Containerfile")
	require.NoError(t, err)
	first, second, ok := strings.Cut(string(file), "\nFROM scratch\n")
	require.True(t, ok)
	dir := t.TempDir()
	stage := filepath.Join(dir, "build")
	require.NoError(t, os.Mkdir(stage, 0o700))
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /l4lb (\./examples/l4lb)$`).FindStringSubmatch(first)
	require.NotNil(t, build)
	cmd := exec.Command("sh", "-c", build[1]+" -o "+stage+"/l4lb "+build[2]) //nolint:gosec // of the repository
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	name := filepath.Join(dir, "Containerfile")
	require.NoError(t, os.WriteFile(name, []byte("FROM scratch\n"+second), 0o600))
	buildah := func(args ...string) string {
		args = append([]string{"--root", dir + "/store", "--runroot", dir + "/run", "--storage-driver", "vfs"}, args...)
		var errs strings.Builder
		cmd := exec.Command(bin, args...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require.NoError(t, err, "%v: %s%s", args, out, &errs)
		return strings.TrimSpace(string(out))
	}
	buildah("bud", "--isolation", "chroot", "--format", "docker", "--build-context", "build="+stage, "-t", "l4lb", "-f", name, t.TempDir())
	var about struct {
		Docker struct {
			Config imageConfig `json:"config"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(buildah("inspect", "--type", "image", "l4lb")), &about))
	root = buildah("mount", buildah("from", "l4lb"))
	t.Cleanup(func() { buildah("rm", "-a") })
	return root, about.Docker.Config
}

// imageConfig is what an image says of how it is run.
type imageConfig struct {
	Env, Cmd, Entrypoint []string
	Volumes              map[string]any
	Healthcheck          struct{ Test []string }
}

// TestContainer builds the image of the container file and runs it as a container: with its environment, its volume, its command and its health
// check, and with no more than the file's comment gives it.
func TestContainer(t *testing.T) {
	chroot := testenv.NeedServers(t, "chroot", "unshare", "setpriv")[0]
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	root, config := image(t)
	require.Contains(t, config.Env, "STATE_DIRECTORY=/var/lib/l4lb")
	require.Contains(t, config.Volumes, "/var/lib/l4lb")
	require.Equal(t, "CMD", config.Healthcheck.Test[0])
	for _, dir := range []string{"var/lib/l4lb", "etc", "dev/net", "run", "proc", "sys"} { // every container has them
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "admin: {socket: none}\n", "", 1)
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/l4lb.yaml"), []byte(text), 0o600))
	// --cap-drop all --cap-add NET_ADMIN --cap-add NET_RAW --device /dev/net/tun, and the file systems that every container has.
	script := "mount -t proc none " + root + "/proc; mount -t sysfs none " + root + "/sys; touch " + root + "/dev/net/tun; mount --bind /dev/net/tun " + root + "/dev/net/tun\n" +
		"exec setpriv --bounding-set=-all,+net_admin,+net_raw,+sys_chroot --inh-caps=-all env -i " + strings.Join(config.Env, " ") + " " + chroot + " " + root + ` "$@"`
	log := &rig.Log{}
	p := rig.Start(t, h.balancer, log, "unshare", append(append([]string{"-m", "sh", "-ec", script, "sh"}, config.Entrypoint...), config.Cmd...)...)
	t.Cleanup(p.End)
	healthy := func() bool {
		return h.balancer.Do(exec.Command(chroot, append([]string{root}, config.Healthcheck.Test[1:]...)...).Run) == nil
	}
	require.Eventually(t, healthy, patience, 200*time.Millisecond, "%v", log)
	for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
		require.Eventually(t, func() bool { _, err := h.get(vip); return err == nil }, patience, 50*time.Millisecond, "%v", log)
	}
	require.NoError(t, p.Stop(patience), "%v", log)
	require.FileExists(t, filepath.Join(root, "var/lib/l4lb/l4lb.state"))
}

package repo

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program is one of somebody else's for one package, or for all.
type program struct {
	pkg     string   // relative to the module; "" for all
	brings  []string // the other public packages that it has to import
	prints  string
	modules []string // of third parties that come with it, as in its go.mod; think twice before a list grows
}

// name is that of the program and of its folder.
func (x program) name() string {
	if x.pkg == "" {
		return "all"
	}
	return path.Base(x.pkg)
}

var (
	xnet, xsys, xtext = "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text"
	lru, siphash      = "github.com/hashicorp/golang-lru/v2", "github.com/dchest/siphash"
	gopacket          = "github.com/google/gopacket"
	// memberlist is what comes with steering/cluster.
	memberlist = []string{
		"github.com/google/btree", "github.com/hashicorp/errwrap", "github.com/hashicorp/go-immutable-radix", "github.com/hashicorp/go-metrics",
		"github.com/hashicorp/go-msgpack/v2", "github.com/hashicorp/go-multierror", "github.com/hashicorp/go-sockaddr",
		"github.com/hashicorp/golang-lru", "github.com/hashicorp/memberlist", "github.com/miekg/dns", "github.com/sean-/seed",
	}
)

var external = []program{
	{"policy", nil, "policy: staff farm", []string{xsys}},
	{"policy/l7", nil, "l7: decided images", nil},
	{"clienttable", nil, "clienttable: 3 true", []string{xsys}},
	{"healthcheck", nil, "healthcheck: web1 active", nil},
	{"healthcheck/probe", []string{"healthcheck"}, "probe: web1 active", []string{xnet, xsys, xtext}},
	{"healthcheck/healthchecktest", []string{"healthcheck"}, "healthchecktest: pass fail", nil},
	{"sslpersist", nil, "sslpersist: shop.example, session ID of 32 bytes, <nil>", []string{lru}},
	{"steering", nil, "steering: 10 20", nil},
	{"steering/intercept", []string{"steering"}, "intercept: redirect", []string{lru}},
	{"steering/path", nil, "path: sent mpls", nil},
	{"steering/cluster", nil, "cluster: [lb1] steady", slices.Concat(memberlist, []string{lru, xnet, xsys})},
	{"steering/cluster/flowshare", nil, "flowshare: 6 192.0.2.80:80-198.51.100.7:4711 has 2 holders", nil},
	{"dataplane", []string{"policy", "steering"}, "dataplane: forwarded web web1", []string{lru, siphash, xsys}},
	{"dataplane/afpacket", nil, `afpacket: config: Interfaces[1]: "eth0": named twice`, []string{xnet, xsys}},
	{"dataplane/devtest", nil, "devtest: 1 a packet", nil},
	{"dataplane/flowexport", nil, "flowexport: 1 true", nil},
	{"dataplane/pcapdev", nil, "pcapdev: 1 packet of 4 bytes", []string{gopacket, xnet, xsys}},
	{"dataplane/pcapng", nil, "pcapng: 1 true", nil},
	{"dataplane/splice", nil, "splice: 5001 1", []string{siphash}},
	{"dataplane/tun", nil, "tun: MTU 576: must be 1280 to 65521", []string{xsys}},
	{"", nil, "all: 20", slices.Concat(memberlist, []string{gopacket, lru, siphash, xnet, xsys, xtext})},
}

// TestExternalModule: from a module of somebody else's, programs that import each package alone, and one that imports all, are
// built and run, and each program's modules are exactly those of the table.
func TestExternalModule(t *testing.T) {
	all := public(t)
	dir := filepath.Join(root(), "internal", "repo", "testdata", "external")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names, want []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	for _, x := range external {
		want = append(want, x.name())
	}
	require.ElementsMatch(t, want, names, "a program for each line of the table, and a line for each program")
	for _, p := range all {
		require.Truef(t, slices.ContainsFunc(external, func(x program) bool { return x.pkg == p.rel() }), "no program of others imports %s", p.rel())
	}

	// The versions are those of this module, whatever they are today.
	mod := filepath.Join(t.TempDir(), "external.mod")
	require.NoError(t, os.WriteFile(mod, []byte(read(t, "internal/repo/testdata/external/go.mod")), 0o600))
	require.NoError(t, os.WriteFile(strings.TrimSuffix(mod, "mod")+"sum", []byte(read(t, "go.sum")), 0o600))
	bin := t.TempDir() + string(filepath.Separator)
	goCommand(t, dir, "build", "-mod=mod", "-modfile="+mod, "-o", bin, "./...")
	imports := map[string][]string{}
	for line := range strings.Lines(goCommand(t, dir, "list", "-mod=mod", "-modfile="+mod, "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")) {
		f := strings.Fields(line)
		for _, i := range f[1:] {
			if rel, ours := strings.CutPrefix(i, module+"/"); ours {
				imports[path.Base(f[0])] = append(imports[path.Base(f[0])], rel)
			} else {
				require.NotContainsf(t, i, ".", "%s imports %s", f[0], i)
			}
		}
	}
	for _, x := range external {
		out, err := exec.Command(bin + x.name()).CombinedOutput()
		require.NoErrorf(t, err, "%s: %s", x.name(), out)
		require.Equal(t, x.prints, strings.TrimSpace(string(out)))
		if x.pkg == "" {
			require.Lenf(t, imports["all"], len(all), "program all imports all packages: %v", imports["all"])
			continue
		}
		require.ElementsMatchf(t, append([]string{x.pkg}, x.brings...), imports[x.name()], "what program %s imports", x.name())
	}
}

// TestExternalModules: a module that imports a package alone has in its go.mod, and in its program, the modules of the table.
func TestExternalModules(t *testing.T) {
	list(t) // or skip
	for _, x := range external {
		t.Run(x.name(), func(t *testing.T) {
			dir := t.TempDir()
			source := read(t, "internal/repo/testdata/external/"+x.name()+"/main.go")
			mod := "module example.com/" + x.name() + "\n\ngo 1.26.0\n\nreplace " + module + " => " + root() + "\n"
			for name, text := range map[string]string{"main.go": source, "go.mod": mod, "go.sum": read(t, "go.sum")} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			goCommand(t, dir, "mod", "tidy")
			var tidied struct {
				Require []struct{ Path string }
			}
			require.NoError(t, json.Unmarshal([]byte(goCommand(t, dir, "mod", "edit", "-json")), &tidied))
			var required []string
			for _, r := range tidied.Require {
				if r.Path != module {
					required = append(required, r.Path)
				}
			}
			require.ElementsMatch(t, x.modules, required, "modules in go.mod")
			var linked []string
			for m := range strings.Lines(goCommand(t, dir, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")) {
				if m = strings.TrimSpace(m); m != "" && m != module && m != "example.com/"+x.name() && !slices.Contains(linked, m) {
					linked = append(linked, m)
				}
			}
			require.ElementsMatch(t, x.modules, linked, "modules in the program")
		})
	}
}

// goCommand runs the go command in another module.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "go %v: %s", args, stderr.String())
	return strings.TrimSpace(string(out))
}

// TestModulesInGuide: the guide's table of modules is the one that is tested.
func TestModulesInGuide(t *testing.T) {
	_, table, ok := strings.Cut(read(t, "examples/guides/one-package.md"), "| package | modules of others |\n|---|---|\n")
	require.True(t, ok, "the guide has a table")
	table, _, _ = strings.Cut(table, "\n\n")
	link := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	shown := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		require.Lenf(t, cells, 2, "%s", line)
		modules := []string{}
		if text := strings.TrimSpace(cells[1]); text != "none" {
			modules = strings.Split(text, ", ")
		}
		for p := range strings.SplitSeq(link.ReplaceAllString(strings.TrimSpace(cells[0]), "$1"), ", ") {
			require.NotContainsf(t, shown, p, "twice")
			shown[p] = modules
		}
	}
	for _, x := range external {
		name := x.pkg
		if name == "" {
			name = "all of them"
		}
		require.Containsf(t, shown, name, "not in the guide")
		require.ElementsMatchf(t, x.modules, shown[name], "the guide's modules of %s", name)
	}
	require.Len(t, shown, len(external))
}

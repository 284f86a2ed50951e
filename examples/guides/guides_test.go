// Package guides holds the guides to what they say: its test runs their commands and checks their files.
package guides

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// block is a fenced block: info is what stands behind the fence.
type block struct {
	info, text string
	line       int
}

func blocks(text string) (all []block) {
	var b *block
	n := 0
	for line := range strings.Lines(text) {
		n++
		switch fence, ok := strings.CutPrefix(line, "```"); {
		case ok && b == nil:
			b = &block{info: strings.TrimSpace(fence), line: n}
		case ok:
			all = append(all, *b)
			b = nil
		case b != nil:
			b.text += line
		}
	}
	return all
}

// build compiles the programs that the guides call.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"l4lb", "healthd", "replay", "convert"} {
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../"+name).CombinedOutput()
		require.NoErrorf(t, err, "%s", out)
	}
	return dir
}

// TestGuides goes through every guide in a folder of its own. A block
//
//	yaml file=NAME          is written to a file
//	go file=PATH            must stand in that file of the repository
//	console                 is run: lines behind $, each followed by what it prints, where … stands for anything
//	console root            likewise, and not run here
func TestGuides(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the guides are for Linux")
	}
	names, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	bin := build(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(text), "# "), "a guide begins with its title")
			dir := t.TempDir()
			for _, b := range blocks(string(text)) {
				kind, rest, _ := strings.Cut(b.info, " ")
				file, hasFile := strings.CutPrefix(rest, "file=")
				switch {
				case kind == "yaml" || kind == "conf":
					require.Truef(t, hasFile, "line %d: files have a name", b.line)
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(b.text), 0o600))
				case kind == "go":
					require.Truef(t, hasFile, "line %d: programs stand in a file", b.line)
					source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
					require.NoError(t, err)
					require.Containsf(t, string(source), b.text, "line %d: %s has other code", b.line, file)
				case kind == "console" && rest == "":
					console(t, dir, bin, b)
				case kind == "console" && rest == "root", kind == "text":
				default:
					t.Errorf("line %d: block %q is not tested", b.line, b.info)
				}
			}
		})
	}
}

func console(t *testing.T, dir, bin string, b block) {
	t.Helper()
	for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // guides show faults, too
		pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*") + "$"
		require.Regexpf(t, pattern, strings.TrimSpace(out.String()), "line %d: %s", b.line, command)
	}
}

// TestLinks: what guides link to exists, and every guide is in the list.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	names, err := filepath.Glob("*.md")
	require.NoError(t, err)
	list, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(string(text), "")
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			_, err := os.Stat(filepath.FromSlash(m[1]))
			require.NoErrorf(t, err, "%s links to %s", name, m[1])
		}
		if name != "README.md" {
			require.Containsf(t, string(list), "]("+name+")", "README.md does not list %s", name)
		}
	}
}

package repo

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// notChecked are commands in documents that nothing here can run or look up, and why.
var notChecked = map[string]string{
	"go get github.com/lbprim/lbprim/policy":                  "the module is not published yet, as README says",
	"go mod edit -replace github.com/lbprim/lbprim=../lbprim": "TestExternalModules writes the line that this makes",
	"go mod tidy":   "TestExternalModules runs it",
	"go test ./...": ".ci/run runs it, see TestREADMECommands",
	"go build -o /usr/local/bin/ ./examples/l4lb ./examples/healthd ./examples/replay ./examples/convert": "TestGuides builds these four",
}

// elsewhere are documents whose fenced commands are run by a test of their own.
var elsewhere = map[string]string{
	"examples/l4lb/README.md": "TestREADME of examples/l4lb runs the walk-through; the one curl behind it is not run",
	"examples/guides":         "TestGuides runs every block",
}

// TestExternalCommands: every command of the go tool and of .ci that a document shows exists: its package is there, the program knows its flags and what they
// may be, and a test's or benchmark's pattern meets one.
func TestExternalCommands(t *testing.T) {
	list(t) // or skip
	used := map[string]bool{}
	helps := map[string]string{}
	require.NoError(t, filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".md") {
			return nil
		}
		rel, err := filepath.Rel(root(), path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		for _, command := range shown(read(t, rel), elsewhere[rel] == "" && elsewhere[filepath.ToSlash(filepath.Dir(rel))] == "") {
			if notChecked[command] != "" {
				used[command] = true
				continue
			}
			resolve(t, rel, command, helps)
		}
		return nil
	}))
	for command := range notChecked {
		require.Truef(t, used[command], "%q is in no document", command)
	}
}

// shown returns the commands of a document: those in the running text and in lines set off by four spaces, and with blocks all lines of fenced blocks
// that are no program, file or output.
func shown(text string, blocks bool) (commands []string) {
	fence := regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	for _, b := range fence.FindAllStringSubmatch(text, -1) {
		if info := strings.Fields(b[1]); len(info) > 0 || !blocks {
			continue
		}
		for line := range strings.Lines(b[2]) {
			line, _, _ = strings.Cut(line, " # ")
			if line = strings.TrimSpace(line); line != "" {
				commands = append(commands, line)
			}
		}
	}
	prose := fence.ReplaceAllString(text, "")
	tool := regexp.MustCompile(`^(cd [a-z/]+ && )?(go (run|test|build|get) |\.ci/)`)
	for line := range strings.Lines(prose) {
		if l, ok := strings.CutPrefix(line, "    "); ok && tool.MatchString(l) {
			commands = append(commands, strings.TrimSpace(l))
		}
	}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(prose, -1) {
		if c := strings.Join(strings.Fields(m[1]), " "); tool.MatchString(c) {
			commands = append(commands, c)
		}
	}
	return commands
}

func resolve(t *testing.T, where, command string, helps map[string]string) {
	t.Helper()
	dir, rest := root(), command
	if into, after, ok := strings.Cut(command, " && "); ok && strings.HasPrefix(into, "cd ") {
		dir, rest = filepath.Join(dir, filepath.FromSlash(into[3:])), after
	}
	words := strings.Fields(strings.ReplaceAll(rest, "'", ""))
	switch {
	case strings.HasPrefix(words[0], ".ci/"):
		info, err := os.Stat(filepath.Join(root(), words[0]))
		require.NoErrorf(t, err, "%s: %s", where, command)
		if strings.HasPrefix(read(t, words[0]), "#!") { // else it is a file that is spoken of
			require.NotZerof(t, info.Mode()&0o100, "%s: %s is no program", where, words[0])
		}
	case len(words) > 2 && words[1] == "run":
		args := slices.DeleteFunc(words[2:], func(w string) bool { return w == "" })
		lookUp(t, where, command, dir, args[0], args[1:], helps)
	case len(words) > 2 && words[1] == "test":
		tests(t, where, command, dir, words[2:])
	default:
		t.Errorf("%s: %q is neither checked nor listed", where, command)
	}
}

// lookUp looks a program's arguments up in its help.
func lookUp(t *testing.T, where, command, dir, name string, args []string, helps map[string]string) {
	t.Helper()
	key := dir + " " + name
	help, ok := helps[key]
	if !ok {
		cmd := exec.Command("go", "run", name, "-h")
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput() // some end with a status of their own after -h
		help = string(out)
		helps[key] = help
		assert.Regexpf(t, "(?i)usage|flags|commands", help, "%s: %s: -h of %s prints no help", where, command, name)
	}
	for i, a := range args {
		switch {
		case a == "-h":
		case strings.HasPrefix(a, "-"):
			assert.Regexpf(t, `(?m)^\s*--?`+regexp.QuoteMeta(strings.TrimLeft(a, "-"))+`\b`, help, "%s: %s: -h does not know %s", where, command, a)
		case i > 0 && strings.HasPrefix(args[i-1], "-"):
			for v := range strings.SplitSeq(a, ",") { // of an enumeration, or a number
				if regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(v) {
					assert.Regexpf(t, `\b`+regexp.QuoteMeta(v)+`\b`, help, "%s: %s: -h does not know %s", where, command, v)
				}
			}
		default:
			assert.Regexpf(t, `(?m)^\s+(\w+ )?`+regexp.QuoteMeta(a)+`\b`, help, "%s: %s: -h does not know %s", where, command, a)
		}
	}
}

// tests looks for what go test is to run, and for flags of the tests' own.
func tests(t *testing.T, where, command, dir string, words []string) {
	t.Helper()
	var sources strings.Builder
	values := map[string]string{}
	var flags []string
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case strings.HasPrefix(w, "./"):
			files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(w), "*_test.go"))
			require.NoError(t, err)
			require.NotEmptyf(t, files, "%s: %s: no tests in %s", where, command, w)
			for _, f := range files {
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				sources.Write(b)
			}
		case w == "-run" || w == "-bench":
			require.Lessf(t, i+1, len(words), "%s: %s", where, command)
			i++
			values[w] = words[i]
		case w == "-v":
		case w == "-timeout":
			i++
		default:
			if name, ok := strings.CutPrefix(w, "-"); ok {
				flags = append(flags, name)
			}
		}
	}
	for flag, kind := range map[string]string{"-run": "Test", "-bench": "Benchmark"} {
		top, _, _ := strings.Cut(values[flag], "/")
		if top == "" || top == "xxx" {
			continue
		}
		pattern, err := regexp.Compile(top)
		require.NoErrorf(t, err, "%s: %s", where, command)
		meets := slices.ContainsFunc(regexp.MustCompile(`(?m)^func (`+kind+`\w*)`).FindAllStringSubmatch(sources.String(), -1), func(m []string) bool {
			return pattern.MatchString(m[1])
		})
		assert.Truef(t, meets, "%s: %s: %s meets none", where, command, top)
	}
	for _, name := range flags {
		assert.Regexpf(t, `flag\.\w+\(("|&\w+, ")`+regexp.QuoteMeta(name)+`"`, sources.String(), "%s: %s: no test has the flag -%s", where, command, name)
	}
}

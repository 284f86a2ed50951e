package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func sample() *Program {
	return &Program{
		Name: "prog", Summary: "does this and that", Text: "Begin with\n\n  prog greet world\n\nand go on.",
		Commands: []Command{
			{Name: "greet", Args: "WHO [HOW]", Least: 1, Most: 2, Summary: "say hello", Text: ".dots and -dashes", Complete: "file", Flags: func(f *flag.FlagSet) Run {
				loud := f.Bool("loud", false, "shout")
				times := f.Int("n", 3, "`number` of times")
				return func(_ context.Context, std IO, args []string) error {
					if *times == 0 {
						return errors.New("nothing to say")
					}
					if *times < 0 {
						return Usage("-n %d: want 0 or more", *times)
					}
					_, _ = std.Out.Write([]byte(strings.Join(args, "+")))
					if *loud {
						_, _ = std.Out.Write([]byte("!"))
					}
					return nil
				}
			}},
			{Name: "sum", Args: "[N ...]", Most: -1, Summary: "count", Flags: func(*flag.FlagSet) Run {
				return func(_ context.Context, _ IO, args []string) error {
					if len(args) == 0 {
						return &Status{Code: 9, Err: errors.New("nothing to count")}
					}
					return &Status{Code: 10 + len(args)}
				}
			}},
			{Name: "pick", Args: "a|b", Least: 1, Summary: "pick one", Flags: func(*flag.FlagSet) Run {
				return func(context.Context, IO, []string) error { return nil }
			}},
			{Name: "list", Summary: "list all", Complete: "help -names", Flags: func(*flag.FlagSet) Run {
				return func(context.Context, IO, []string) error { return nil }
			}},
		},
	}
}

func try(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = sample().Run(context.Background(), args, IO{&o, &e})
	return status, o.String(), e.String()
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		args      []string
		status    int
		out, errs string
	}{
		{nil, 2, "", "Usage:"},
		{[]string{"greet", "x"}, 0, "x", ""},
		{[]string{"greet", "-loud", "x", "y"}, 0, "x+y!", ""},
		{[]string{"greet", "x", "-n", "2", "y", "-loud"}, 0, "x+y!", ""},
		{[]string{"greet"}, 2, "", "prog greet: want WHO [HOW]"},
		{[]string{"greet", "a", "b", "c"}, 2, "", `"c": want WHO [HOW] only`},
		{[]string{"sum"}, 9, "", "nothing to count\n"},
		{[]string{"sum", "a", "b", "c"}, 13, "", ""},
		{[]string{"list", "x"}, 2, "", `"x": want no arguments`},
		{[]string{"greet", "-bogus", "x"}, 2, "", "bogus"},
		{[]string{"greet", "-n", "0", "x"}, 1, "", "nothing to say"},
		{[]string{"greet", "-n", "-1", "x"}, 2, "", "-n -1: want 0 or more"},
		{[]string{"greet", "-h"}, 0, "Say hello.", ""},
		{[]string{"gret"}, 2, "", `"gret": want greet, sum, pick, list, help`},
		{[]string{"help", "greet"}, 0, "-n NUMBER\n        Number of times. Default 3.", ""},
		{[]string{"help", "dance"}, 2, "", `"dance": want greet`},
		{[]string{"--help"}, 0, "prog help COMMAND", ""},
		{[]string{"help", "-names"}, 0, "greet\nsum\npick\nlist\nhelp\nman\ncompletion\n", ""},
		{[]string{"completion", "tcsh"}, 2, "", "want bash, zsh or fish"},
	} {
		status, out, errs := try(c.args...)
		require.Equal(t, c.status, status, "%v: %s", c.args, errs)
		require.Contains(t, out, c.out, c.args)
		require.Contains(t, errs, c.errs, c.args)
	}
}

func TestMan(t *testing.T) {
	_, man, _ := try("man")
	require.Contains(t, man, ".TH PROG 8\n")
	require.Contains(t, man, `\&.dots and \-dashes`)
	groff, err := exec.LookPath("groff")
	if err != nil {
		return // its judgement is a bonus
	}
	cmd := exec.Command(groff, "-man", "-Tascii", "-ww", "-z")
	cmd.Stdin = strings.NewReader(man)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

// Completion completes: bash says what it would offer.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		_, script, _ := try("completion", shell)
		require.Contains(t, script, "greet")
		require.Contains(t, script, "loud")
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", shell, out)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prog"), []byte("#!/bin/sh\necho one two\n"), 0o700)) //nolint:gosec // a program
	require.NoError(t, os.WriteFile(filepath.Join(dir, "afile"), nil, 0o600))
	_, script, _ := try("completion", "bash")
	for _, c := range []struct{ words, want string }{
		{"prog gr", "greet"}, {"prog greet -l", "-loud"}, {"prog greet afi", "afile"}, {"prog pick ''", "a b"}, {"prog list t", "two"},
	} {
		cmd := exec.Command(bash, "-c", script+"\nCOMP_WORDS=("+c.words+"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _prog; echo ${COMPREPLY[@]}")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.want, strings.TrimSpace(string(out)), c.words)
	}
}

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every metric that the dashboard asks for exists, with the labels it uses.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("deploy/grafana.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	require.NoError(t, json.Unmarshal(b, &d))
	labels := map[string][]string{}
	for _, m := range metricTable {
		labels["l4lb_"+m.name] = append([]string{"instance"}, m.labels...)
	}
	used := map[string]bool{}
	for _, p := range d.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, strings.Count(target.Expr, "("), strings.Count(target.Expr, ")"), target.Expr)
			for _, m := range regexp.MustCompile(`(l4lb_\w+)\{([^}]*)\}`).FindAllStringSubmatch(target.Expr, -1) {
				require.Contains(t, labels, m[1], p.Title)
				used[m[1]] = true
				for _, l := range regexp.MustCompile(`(\w+)=~`).FindAllStringSubmatch(m[2], -1) {
					require.Contains(t, labels[m[1]], l[1], target.Expr)
				}
			}
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`label_values\((\w+), (\w+)\)`).FindStringSubmatch(v.Query); m != nil {
			require.Contains(t, labels[m[1]], m[2])
		}
	}
	require.Greater(t, len(used), 12)
}

// The unit is one that systemd accepts, and starts the program as it wants to be started.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile("deploy/l4lb.service")
	require.NoError(t, err)
	unit := string(b)
	for _, line := range regexp.MustCompile(`(?m)^Exec\w+=/usr/local/bin/l4lb (\w+) `).FindAllStringSubmatch(unit, -1) {
		status, _, errs := invoke(t, "help", line[1])
		require.Zero(t, status, errs)
	}
	require.Contains(t, unit, "Type=notify\n")
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // its own judgement is a bonus
	}
	bin := t.TempDir() + "/l4lb"
	require.NoError(t, os.WriteFile(bin, []byte("#!/bin/sh\n"), 0o700)) //nolint:gosec // systemd wants a program
	file := t.TempDir() + "/l4lb.service"
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/l4lb", bin)), 0o600))
	out, err := exec.Command(verify, "verify", "--man=no", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "l4lb.service:", "warnings")
}

// The container file builds this program from files that exist, and runs commands that exist.
func TestContainerfile(t *testing.T) {
	b, err := os.ReadFile("deploy/Containerfile")
	require.NoError(t, err)
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	require.Contains(t, string(b), "golang:"+version+" ")
	stages := 0
	for line := range strings.Lines(string(b)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "", "#", "WORKDIR", "ENV", "VOLUME":
		case "FROM":
			stages++
		case "COPY":
			if !strings.HasPrefix(rest, "--from") && rest != ". ." {
				for _, f := range strings.Fields(strings.TrimSuffix(rest, " ./")) {
					require.FileExists(t, "../../"+f)
				}
			}
		case "RUN":
			if strings.Contains(rest, "go build") {
				require.Contains(t, rest, "CGO_ENABLED=0")
				require.Contains(t, rest, "./examples/l4lb")
			}
		case "ENTRYPOINT", "CMD":
			var args []string
			require.NoError(t, json.Unmarshal([]byte(rest), &args))
		case "HEALTHCHECK":
			_, list, _ := strings.Cut(rest, "CMD ")
			var args []string
			require.NoError(t, json.Unmarshal([]byte(list), &args))
			status, _, errs := invoke(t, "help", args[1])
			require.Zero(t, status, errs)
		default:
			require.Fail(t, "unknown instruction", line)
		}
	}
	require.Equal(t, 2, stages)
}

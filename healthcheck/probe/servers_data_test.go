//go:build linux

package probe_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

func TestServerLDAP(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "slapd")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	cert, key, cfg := pemFiles(t, dir, time.Now().Add(time.Hour))
	require.NoError(t, os.Mkdir(dir+"/db", 0o755))
	start := func(extra string) *server {
		conf := write(t, dir, "slapd.conf", "include /etc/ldap/schema/core.schema\npidfile %s/pid\nallow bind_v2\n%s\nTLSCertificateFile %s\nTLSCertificateKeyFile %s\n"+
			"database ldif\nsuffix \"dc=example\"\ndirectory %s/db\nrootdn \"cn=admin,dc=example\"\nrootpw secret\n", dir, extra, cert, key, dir)
		return launch(t, exec.Command(bin, "-h", "ldap://"+addr.String()+"/ ldap://"+v6(addr).String()+"/", "-f", conf, "-d", "0"))
	}
	admin := probe.LDAP{DN: "cn=admin,dc=example", Password: "secret"}
	wrong := probe.LDAP{DN: "cn=admin,dc=example", Password: "guess"}
	s := start("")
	s.until(t, probe.LDAP{}, addr)
	passes(t, probe.LDAP{Version: 2}, addr)
	passes(t, probe.LDAP{StartTLS: true, TLS: cfg}, addr)
	passes(t, probe.LDAP{StartTLS: true, TLS: cfg}, v6(addr))
	passes(t, admin, addr)
	fails(t, wrong, addr, `ldap: bind: got "result code 49", want result code in [0]`)
	wrong.ResultCodes = []uint8{0, 49}
	passes(t, wrong, addr)
	s.lifecycle(t, probe.LDAP{}, addr)

	s = start("disallow bind_anon")
	s.until(t, admin, addr)
	fails(t, probe.LDAP{}, addr, "result code 48, anonymous bind disallowed")
}

func TestServerRedis(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "redis-server")[0]
	dir, addr := openDir(t), testenv.FreePort(t)
	start := func(args ...string) *server {
		cmd := exec.Command(bin, append([]string{"--port", portOf(addr), "--bind", "127.0.0.1", "--save", "", "--dir", dir}, args...)...)
		return launch(t, cmd)
	}
	s := start()
	s.until(t, probe.Redis{}, addr)
	fails(t, probe.Redis{Password: "x"}, addr, `redis: AUTH: got "-ERR AUTH <password> called without any password configured`)
	ping := probe.Script{Steps: []probe.Step{{Send: []byte("PING\r\n"), Expect: []byte("+PONG\r\n")}}}
	passes(t, ping, addr)
	s.lifecycle(t, probe.Redis{}, addr)
	fails(t, ping, addr, "connection refused")
	s = start("--requirepass", "secret")
	s.until(t, probe.Redis{Password: "secret"}, addr)
	passes(t, probe.Redis{User: "default", Password: "secret"}, addr)
	fails(t, probe.Redis{}, addr, `redis: PING: got "-NOAUTH Authentication required.", want +PONG`)
	fails(t, probe.Redis{Password: "wrong"}, addr, `redis: AUTH: got "-WRONGPASS`)
	s.stop(t)
	require.ErrorIs(t, probeAt(ping, addr, short).Err, os.ErrDeadlineExceeded)
	met(ping, "hangs")
}

func TestServerMySQL(t *testing.T) {
	t.Parallel()
	bins := testenv.NeedServers(t, "mariadbd", "mariadb-install-db")
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	data := filepath.Join(dir, "data")
	install := exec.Command(bins[1], "--no-defaults", "--user=mysql", "--datadir="+data, "--skip-test-db",
		"--auth-root-authentication-method=normal", "--skip-name-resolve")
	install.Env = append(os.Environ(), "TMPDIR="+dir) // the test's may be root's alone
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	start := func(sql string) *server {
		init := write(t, dir, "init.sql", "%s", sql)
		return launch(t, exec.Command(bins[0], "--no-defaults", "--user=mysql", "--datadir="+data, "--bind-address=127.0.0.1",
			"--port="+portOf(addr), "--socket="+dir+"/socket", "--pid-file="+dir+"/pid", "--skip-name-resolve",
			"--init-file="+init, "--innodb-flush-method=fsync", "--skip-log-bin", "--tmpdir="+dir))
	}
	s := start("CREATE USER IF NOT EXISTS 'check'@'%';\n")
	s.until(t, probe.MySQL{User: "check"}, addr)
	res := passes(t, probe.MySQL{}, addr)
	require.Contains(t, res.Note, "MariaDB")
	fails(t, probe.MySQL{User: "nobody"}, addr, `mysql: login: got "error 1045: Access denied`)
	s.lifecycle(t, probe.MySQL{}, addr)
	if testing.Short() {
		return
	}
	s = start("DELETE FROM mysql.global_priv WHERE Host <> 'localhost';\nFLUSH PRIVILEGES;\n")
	waitOpen(t, s, addr.String())
	fails(t, probe.MySQL{}, addr, `mysql: greeting: got "error 1130: Host '127.0.0.1' is not allowed to connect`)
}

func TestServerPostgres(t *testing.T) {
	t.Parallel()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	bin := "/usr/lib/postgresql/*/bin" // named in the reason for a skip
	if len(found) > 0 {
		bin = filepath.Dir(found[len(found)-1])
	}
	bins := testenv.NeedServers(t, bin+"/initdb", bin+"/postgres")
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	data := filepath.Join(dir, "data")
	cmd := asUser(t, exec.Command(bins[0], "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8"), "postgres")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	start := func(hba string) *server {
		require.NoError(t, os.WriteFile(data+"/pg_hba.conf", []byte(hba), 0o644))
		cmd := asUser(t, exec.Command(bins[1], "-D", data, "-p", portOf(addr), "-k", dir, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"), "postgres")
		cmd.Dir = dir
		return launch(t, cmd)
	}
	s := start("host all all 127.0.0.1/32 trust\n")
	s.until(t, probe.Postgres{}, addr)
	passes(t, probe.Postgres{User: "nobody"}, addr) // the answer to authentication comes before the error
	s.lifecycle(t, probe.Postgres{}, addr)
	os.Remove(data + "/postmaster.pid")
	s = start("host all all 127.0.0.1/32 scram-sha-256\n")
	s.until(t, probe.Postgres{User: "nobody"}, addr) // it asks for a password first
	s.kill()
	os.Remove(data + "/postmaster.pid")
	s = start("host all all 127.0.0.1/32 reject\n")
	waitOpen(t, s, addr.String())
	s.until(t, probe.Postgres{ErrorPasses: true}, addr)
	fails(t, probe.Postgres{}, addr, "pg_hba.conf rejects connection")
}

func portOf(addr interface{ String() string }) string {
	_, port, _ := net.SplitHostPort(addr.String())
	return strings.TrimSpace(port)
}

//go:build linux

package probe_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

func TestServerFTP(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "vsftpd")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	banner := write(t, dir, "banner", "Welcome.\nThis greeting has\nseveral lines.\n")
	require.NoError(t, os.Mkdir(dir+"/empty", 0o755))
	conf := write(t, dir, "vsftpd.conf", "listen=YES\nlisten_address=127.0.0.1\nlisten_port=%d\nbackground=NO\nanonymous_enable=YES\n"+
		"secure_chroot_dir=%s/empty\nanon_root=%s/empty\nbanner_file=%s\nmax_clients=2\nseccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\n", addr.Port(), dir, dir, banner)
	s := launch(t, exec.Command(bin, conf))
	s.until(t, probe.FTP{}, addr)
	t.Run("refusing", func(t *testing.T) {
		end := time.Now().Add(startWait)
		for held := 0; held < 2; {
			require.True(t, time.Now().Before(end), "it does not take two")
			c, err := net.Dial("tcp", addr.String())
			require.NoError(t, err)
			defer c.Close()
			b := make([]byte, 100)
			_, err = c.Read(b)
			require.NoError(t, err)
			if bytes.HasPrefix(b, []byte("220")) { // else an earlier one is not gone yet
				held++
			}
		}
		fails(t, probe.FTP{}, addr, `ftp: greeting: got "421 There are too many connected users`)
	})
	s.until(t, probe.FTP{}, addr) // it needs a moment to notice that the two are gone
	s.lifecycle(t, probe.FTP{}, addr)
}

func TestServerSMTP(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "exim4")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	cert, key, cfg := pemFiles(t, dir, time.Now().Add(time.Hour))
	start := func(acl string) *server {
		conf := write(t, dir, "exim.conf", `
primary_hostname = mail.example.com
local_interfaces = <; 127.0.0.1 ; ::1
daemon_smtp_ports = %d
spool_directory = %s/spool
log_file_path = %s/log-%%s
pid_file_path =
keep_environment =
smtp_banner = mail.example.com ESMTP\nof two lines
tls_advertise_hosts = *
tls_certificate = %s
tls_privatekey = %s
acl_smtp_connect = connect
begin acl
connect:
  %s
`, addr.Port(), dir, dir, cert, key, acl)
		return launch(t, exec.Command(bin, "-bdf", "-C", conf))
	}
	s := start("accept")
	s.until(t, probe.SMTP{}, addr)
	passes(t, probe.SMTP{Hello: "lb.example.com"}, addr)
	passes(t, probe.SMTP{StartTLS: true}, addr)
	passes(t, probe.SMTP{StartTLS: true, TLS: cfg}, addr)
	passes(t, probe.SMTP{StartTLS: true, TLS: cfg}, v6(addr))
	s.lifecycle(t, probe.SMTP{}, addr)
	s = start("deny message = no service here")
	waitOpen(t, s, addr.String())
	fails(t, probe.SMTP{}, addr, `smtp: greeting: got "550`)
}

// waitOpen waits until something listens.
func waitOpen(t testing.TB, s *server, addr string) {
	t.Helper()
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if c, err := net.DialTimeout("tcp", addr, 10*time.Second); err == nil {
			c.Close()
			return
		}
	}
	t.Fatalf("nothing listens on %s\n%s", addr, s.log)
}

func TestServerIMAPAndPOP3(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "dovecot")[0]
	needRoot(t)
	dir, imap, pop3 := openDir(t), testenv.FreePort(t), testenv.FreePort(t)
	cert, key, cfg := pemFiles(t, dir, time.Now().Add(time.Hour))
	old, oldKey, oldCfg := pemFiles(t, dir, time.Now().Add(-time.Hour))
	start := func(cert, key string) *server {
		conf := write(t, dir, "dovecot.conf", `
base_dir = %s/run
log_path = %s/log
protocols = imap pop3
listen = 127.0.0.1, ::1
ssl = yes
ssl_cert = <%s
ssl_key = <%s
passdb {
  driver = static
  args = nopassword=y
}
userdb {
  driver = static
  args = uid=mail gid=mail home=%s
}
service imap-login {
  inet_listener imap {
    port = %d
  }
  inet_listener imaps {
    port = 0
  }
}
service pop3-login {
  inet_listener pop3 {
    port = %d
  }
  inet_listener pop3s {
    port = 0
  }
}
`, dir, dir, cert, key, dir, imap.Port(), pop3.Port())
		return launch(t, exec.Command(bin, "-F", "-c", conf))
	}
	s := start(cert, key)
	s.until(t, probe.IMAP{}, imap)
	s.until(t, probe.POP3{}, pop3)
	passes(t, probe.IMAP{StartTLS: true, TLS: cfg}, imap)
	passes(t, probe.POP3{StartTLS: true, TLS: cfg}, pop3)
	passes(t, probe.IMAP{StartTLS: true, TLS: cfg}, v6(imap))
	passes(t, probe.POP3{StartTLS: true, TLS: cfg}, v6(pop3))
	fails(t, probe.IMAP{StartTLS: true, TLS: oldCfg}, v6(imap), "imap: STARTTLS: tls: failed to verify certificate")
	fails(t, probe.IMAP{StartTLS: true, TLS: oldCfg}, imap, "imap: STARTTLS: tls: failed to verify certificate")
	fails(t, probe.IMAP{}, pop3, `imap: greeting: got "+OK`)
	fails(t, probe.POP3{}, imap, `pop3: greeting: got "* OK`)
	fails(t, probe.SMTP{}, imap, `smtp: greeting: got "* OK`)
	s.kill()
	fails(t, probe.POP3{}, pop3, "connection refused")

	s = start(old, oldKey)
	s.until(t, probe.POP3{}, pop3)
	fails(t, probe.POP3{StartTLS: true, TLS: oldCfg}, pop3, "pop3: STLS: tls: failed to verify certificate: x509: certificate has expired")
	passes(t, probe.POP3{StartTLS: true}, pop3)
	s.until(t, probe.IMAP{}, imap)
	s.lifecycle(t, probe.IMAP{}, imap)
}

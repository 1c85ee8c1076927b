package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// TLS configures the security of a connection to a server.
type TLS struct {
	CA, Certificate, Key string // file names; an empty CA means the system's, an empty Certificate or Key means none
	ServerName           string
}

// ServerTLS configures the security of a server's connections.
type ServerTLS struct {
	Certificate, Key string
	// ClientCA requires clients to show a certificate of these authorities.
	ClientCA string
}

// TLSField configures the security of a connection to a server.
func TLSField(target **TLS) schema.Field {
	return schema.PartField("tls", func() schema.Mapping {
		t := &TLS{}
		*target = t
		return schema.Mapping{
			Fields: []schema.Field{
				schema.PathField("ca", &t.CA, "File with the certificates of the trusted authorities, or the self-signed certificate.").Means("the system's"),
				schema.PathField("certificate", &t.Certificate, "File with the client certificate."),
				schema.PathField("key", &t.Key, "File with the key of the certificate."),
				schema.TextField("server_name", &t.ServerName, "Name that must be in the server's certificate.").Means("the host's"),
			},
			Check: func(v schema.Value, there schema.Members) {
				if (t.Certificate == "") != (t.Key == "") && there["certificate"].Node != nil != (there["key"].Node != nil) {
					v.Wrong("certificate and key belong together: write both")
				}
			},
		}
	}, "TLS to the server; `{}` is enough.").Means("off").Titled("TLS to a server")
}

// ServerTLSField configures the security of a server's connections.
func ServerTLSField(target **ServerTLS) schema.Field {
	return schema.PartField("tls", func() schema.Mapping {
		t := &ServerTLS{}
		*target = t
		return schema.Mapping{Fields: []schema.Field{
			schema.PathField("certificate", &t.Certificate, "File with the certificate of the server.").Need(),
			schema.PathField("key", &t.Key, "File with the key of the certificate.").Need(),
			schema.PathField("client_ca", &t.ClientCA, "File with the authorities that sign client certificates. Clients must then show one.").Means("no client certificates"),
		}}
	}, "TLS for clients.").Means("off").Titled("TLS of a server")
}

// Config reads the files that secure a listener. It returns nil if t is nil. The
// error wraps semel.ErrInvalidRequest.
func (t *ServerTLS) Config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w: %w", err, semel.ErrInvalidRequest)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if t.ClientCA != "" {
		if c.ClientCAs, err = roots(t.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// Config reads the files that secure connections to a server. It returns nil if t
// is nil. The error wraps semel.ErrInvalidRequest.
func (t *TLS) Config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var err error
	if t.CA != "" {
		if c.RootCAs, err = roots(t.CA); err != nil {
			return nil, err
		}
	}
	if t.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w: %w", err, semel.ErrInvalidRequest)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func roots(name string) (*x509.CertPool, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("tls: %w: %w", err, semel.ErrInvalidRequest)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("tls: %s holds no certificate: %w", name, semel.ErrInvalidRequest)
	}
	return pool, nil
}

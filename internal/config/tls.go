package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// TLS configures the security of a connection to a server.
type TLS struct {
	CA, Certificate, Key string // file names; an empty CA means the system's, an empty Certificate or Key means none
	ServerName           string
	InsecureSkipVerify   bool
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
				schema.PathField("ca", &t.CA, "Certificates of the authorities to trust.").Means("the system's"),
				schema.PathField("certificate", &t.Certificate, "Certificate to show."),
				schema.PathField("key", &t.Key, "Its key."),
				schema.TextField("server_name", &t.ServerName, "Name that the server's certificate must have.").Means("the host's"),
				schema.TruthField("insecure_skip_verify", &t.InsecureSkipVerify, "Believe any certificate: whoever stands between can read and answer.").Means("false"),
			},
			Check: func(v schema.Value, there schema.Members) {
				if (t.Certificate == "") != (t.Key == "") && there["certificate"].Node != nil != (there["key"].Node != nil) {
					v.Wrong("certificate and key belong together: name both")
				}
			},
		}
	}, "TLS to the server. It may be empty.").Means("off").Titled("TLS to a server")
}

// ServerTLSField configures the security of a server's connections.
func ServerTLSField(target **ServerTLS) schema.Field {
	return schema.PartField("tls", func() schema.Mapping {
		t := &ServerTLS{}
		*target = t
		return schema.Mapping{Fields: []schema.Field{
			schema.PathField("certificate", &t.Certificate, "Certificate of the server.").Need(),
			schema.PathField("key", &t.Key, "Its key.").Need(),
			schema.PathField("client_ca", &t.ClientCA, "Certificates of the authorities of which clients must show one.").Means("clients show none"),
		}}
	}, "TLS from clients.").Means("off").Titled("TLS of a server")
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
			return nil, fmt.Errorf("%w: %w", err, semel.ErrInvalidRequest)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// Config reads the files that secure connections to a server. It returns nil if t
// is nil.
func (t *TLS) Config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	var err error
	if t.CA != "" {
		if c.RootCAs, err = roots(t.CA); err != nil {
			return nil, err
		}
	}
	if t.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func roots(name string) (*x509.CertPool, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("tls: " + name + " holds no certificate")
	}
	return pool, nil
}

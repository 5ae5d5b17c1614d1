"""One file a study: tables from models, without prose or plots."""
